"""The steps of a stream, and their compilation to a loop over messages.

This package imports ``state`` and ``schema``.
"""
