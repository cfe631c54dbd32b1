"""Audits: compare a store, its changelog and its warehouse table, and plan repairs.

Imports ``snapshots`` and ``engine``.
"""
