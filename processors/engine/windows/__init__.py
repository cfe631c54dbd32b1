"""Windows by time and by counts, with what they keep. Imports ``aggregates``, ``steps`` and ``state``."""
