"""Plans, manifests, names and retention of table snapshots.

Only the module ``gathering`` reads Kafka. This package may import ``engine``.
"""
