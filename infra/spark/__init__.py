"""Spark: configuration, sessions, the warm server (a Spark process that stays up), and short error messages."""
