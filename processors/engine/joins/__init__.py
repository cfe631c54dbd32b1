"""Tables, joins and lookups. This package imports ``windows``, ``steps`` and ``state``."""
