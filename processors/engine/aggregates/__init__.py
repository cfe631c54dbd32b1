"""Built-in aggregates of a key's messages, one by one or by columns. Imports ``steps`` and ``state``."""
