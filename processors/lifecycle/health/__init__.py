"""Judges the health of changelogs, topics and restore rehearsals. It imports the module ``ports``."""
