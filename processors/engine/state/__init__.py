"""State: stores as user functions see them, the overlay of uncommitted writes, and RocksDB below."""
