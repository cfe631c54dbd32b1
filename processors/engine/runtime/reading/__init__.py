"""Chooses the order in which a task processes the records of its inputs, and reads the watermarks of upstream tasks."""
