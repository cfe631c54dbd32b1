"""Recovers failed processors: opens incidents, diagnoses failures, chooses remedies, and writes messages about them.

It imports the packages ``world`` and ``deploy``.
"""
