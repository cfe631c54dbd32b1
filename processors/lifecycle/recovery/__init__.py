"""Recovers failed processors: incidents, kinds of failures, diagnosis, remedies, messages.

Imports ``world`` and ``deploy``.
"""
