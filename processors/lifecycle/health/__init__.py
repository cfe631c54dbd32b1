"""Judges the health of changelogs, topics and restore rehearsals. Imports the module ``ports``."""
