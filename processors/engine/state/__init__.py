"""The stores, their databases, and the coherence guard. This package imports ``changelog`` and ``topology``."""
