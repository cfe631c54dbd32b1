"""Stores, their databases, and the coherence guard. Imports ``changelog`` and ``topology``."""
