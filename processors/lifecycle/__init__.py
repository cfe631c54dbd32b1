"""Plans changes of processors, explains the plans, and applies them.

Imports ``audits``, ``snapshots`` and ``engine``.
"""
