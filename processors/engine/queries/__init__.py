"""Reads of a worker's committed state by other threads and programs, while the worker's loop processes messages."""
