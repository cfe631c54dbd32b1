"""Sinks: the classes that store results in systems other than Kafka, and what a task does with them."""
