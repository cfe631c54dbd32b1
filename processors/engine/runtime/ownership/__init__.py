"""Turns partitions that the group assigns to a worker into running tasks.

This includes the fencing of former owners, the restore of state, standbys, and the checks before a task runs.
"""
