"""Turns assigned partitions into running tasks: fencing, restore, standbys, and checks before a task runs."""
