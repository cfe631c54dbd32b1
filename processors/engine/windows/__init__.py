"""Time windows and count windows, and their stores.

This package may import ``aggregates``, ``steps`` and ``state``.
"""
