"""Judgements on changelogs, topics and restore rehearsals. Imports ``ports``."""
