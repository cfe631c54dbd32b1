"""A model of a store's warehouse in plain Python, and random lives of it on real Iceberg tables."""
