"""Comparison and repair of a store, its changelog and its table. Imports ``snapshots`` and ``engine``."""
