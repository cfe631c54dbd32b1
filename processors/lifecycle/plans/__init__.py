"""Requests of operators, and the plans that carry them out: facts, stages, hash, explanation, apply.

Imports ``ports``.
"""
