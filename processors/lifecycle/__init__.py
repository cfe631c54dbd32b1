"""Plans changes of processors, explains the plans, and applies them.

It imports the packages ``audits``, ``snapshots`` and ``engine``.
"""
