"""Lookups of ``join_lookup`` that are objects: the base classes, and rows of SQLite databases."""
