"""Kafka clients, topics, bounded reads and the embedded broker. Only this package imports confluent_kafka."""
