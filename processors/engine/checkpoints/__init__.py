"""Checkpoints: copies of a task's RocksDB in an object store, with the offsets of the state."""
