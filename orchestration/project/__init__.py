"""A user's project: how it is made, how it starts, and what of it does not load."""
