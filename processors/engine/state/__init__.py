"""Stores of tasks, their databases, and the checks whether local state may be used (the *coherence guard*).

This package may import ``engine.changelog`` and ``engine.topology``.
"""
