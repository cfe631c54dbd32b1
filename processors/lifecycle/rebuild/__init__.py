"""Rebuilds state from source topics, tables or files. Imports ``deploy``."""
