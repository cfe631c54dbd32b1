"""Kafka clients, topics, reads of offset ranges, and the embedded broker. Only this package imports confluent_kafka."""
