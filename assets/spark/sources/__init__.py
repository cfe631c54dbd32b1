"""What Spark reads state from: changelogs, and checkpoints of RocksDB."""
