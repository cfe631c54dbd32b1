"""Prepares a machine: creates the Python environment, and finds or fetches Java, jars and a browser."""
