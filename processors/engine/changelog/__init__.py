"""Changelogs: their names and the format of their records."""
