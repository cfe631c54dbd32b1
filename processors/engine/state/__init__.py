"""The stores, their databases, and the checks whether local state may be used (the *coherence guard*).

This package imports ``changelog`` and ``topology``.
"""
