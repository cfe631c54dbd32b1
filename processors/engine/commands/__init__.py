"""Carries out owner commands: requests that only the worker that owns the state may execute, for example ``clear``."""
