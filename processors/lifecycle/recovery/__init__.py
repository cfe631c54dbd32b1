"""Incidents: fault, diagnosis, remedy, and what is told about them. Imports ``world`` and ``deploy``."""
