"""Orphans, which are resources without an owner: inventory, plan, archive, deletion.

Imports ``world`` and ``deploy``.
"""
