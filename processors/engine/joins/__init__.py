"""Tables, joins and lookups. Imports ``windows``, ``steps`` and ``state``."""
