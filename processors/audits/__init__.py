"""Compares a store, its changelog and its table, and plans repairs. Imports ``snapshots`` and ``engine``."""
