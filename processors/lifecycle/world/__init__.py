"""Implementations of the ports: they read facts and make changes. Imports ``deploy``."""
