"""Reads facts from, and makes changes in, Kafka, supervisor, workers and disk. Imports ``deploy``."""
