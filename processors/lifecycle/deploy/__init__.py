"""Versions of processors: start, wait until they run, roll back. Imports ``plans``."""
