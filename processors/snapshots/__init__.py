"""Plans, manifests, names and retention of table snapshots. Only ``gathering`` reads Kafka. Imports ``engine``."""
