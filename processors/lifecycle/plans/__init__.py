"""Requests, facts, plans, stages, their explanation and their execution. Imports ``ports``."""
