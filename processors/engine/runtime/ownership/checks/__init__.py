"""Checks that a worker makes before it works with partitions that the group assigned to it."""
