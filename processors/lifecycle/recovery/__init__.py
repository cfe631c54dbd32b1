"""Incidents: fault, diagnosis, remedy, and their messages. Imports ``world`` and ``deploy``."""
