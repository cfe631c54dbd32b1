"""Requests, facts, plans and their hashes (``plan.py``), stages, explanation, apply. Imports the module ``ports``."""
