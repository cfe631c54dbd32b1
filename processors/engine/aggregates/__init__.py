"""Built-in aggregates of a key's messages, message by message or by columns. Imports ``steps`` and ``state``."""
