"""Built-in aggregates of a key's messages, computed one by one or with numpy.

This package imports ``steps`` and ``state``.
"""
