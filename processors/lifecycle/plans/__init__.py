"""Requests, facts, plans and their hash (``plan.py``), stages, explanation and apply. Imports ``ports``."""
