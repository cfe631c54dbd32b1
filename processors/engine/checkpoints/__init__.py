"""Copies of state in an object store. Imports ``state``."""
