"""Windows by time and by counts, and their stores. Imports ``aggregates``, ``steps`` and ``state``."""
