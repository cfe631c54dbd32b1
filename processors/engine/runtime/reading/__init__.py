"""The order in which a task processes the records of its inputs, and the watermarks of upstream tasks."""
