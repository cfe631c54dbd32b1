"""Starts versions of processors, waits until they run, and rolls back. It imports the package ``plans``."""
