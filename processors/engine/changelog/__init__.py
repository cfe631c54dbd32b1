"""Formats, names and configuration of changelogs. Imports ``infra``."""
