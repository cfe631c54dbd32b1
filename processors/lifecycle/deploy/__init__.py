"""Versions of processors: start, wait, roll back. Imports ``plans``."""
