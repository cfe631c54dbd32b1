"""The worker: its loop, tasks, commits, restores and standbys.

This package does not import the packages ``commands`` and ``serving``.
"""
