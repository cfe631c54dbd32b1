"""Recovers failed processors: incidents, faults, diagnosis, remedies, messages. Imports ``world`` and ``deploy``."""
