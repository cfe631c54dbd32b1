"""Lists, archives and deletes orphans, which are resources (topics, folders, tables, ...) without an owner.

It imports the packages ``world`` and ``deploy``.
"""
