"""Lists, archives and deletes orphans, which are resources (topics, folders, tables, ...) without an owner.

Imports ``world`` and ``deploy``.
"""
