"""Requests, facts, plans and their hashes (``plan.py``), stages, explanation and apply. Imports ``ports``."""
