"""Kafka: clients, topics, bounded reads and the embedded broker; the only package that imports confluent_kafka."""
