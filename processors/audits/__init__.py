"""Comparison of store, changelog and warehouse. Imports ``snapshots`` and ``engine``."""
