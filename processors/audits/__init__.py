"""Audits: compare a store, its changelog and its warehouse table, and plan repairs.

This package may import ``snapshots`` and ``engine``.
"""
