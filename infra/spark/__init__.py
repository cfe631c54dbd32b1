"""Spark: its configuration, the session, the warm server, and its failures as short sentences."""
