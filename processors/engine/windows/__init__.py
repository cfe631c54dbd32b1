"""Time windows and count windows, and their stores. This package imports ``aggregates``, ``steps`` and ``state``."""
