"""Reads runs and assets from Dagster's webserver, and derives reasons and actions, for commands and messages."""
