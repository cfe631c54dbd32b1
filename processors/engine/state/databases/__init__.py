"""Databases of tasks: the interface, RocksDB, memory, scratch databases, and the layout of a task in its database."""
