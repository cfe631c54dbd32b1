"""Reads facts from Kafka, supervisor, workers and disk, and makes changes in them. Imports ``deploy``."""
