"""A user's project: its creation, its start, and its parts that do not load."""
