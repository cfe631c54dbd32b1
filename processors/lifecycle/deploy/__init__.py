"""Starts versions of processors, waits until they run, and rolls back. Imports ``plans``."""
