"""The HTTP routes of queries about state, and the way to the worker that can answer."""
