"""Reads facts from Kafka, supervisor, workers and disk, and changes them. It imports the package ``deploy``."""
