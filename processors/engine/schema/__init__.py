"""Typed table columns of stores: from models, inferred from values, and their changes.

This package imports ``infra``.
"""
