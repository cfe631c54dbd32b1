"""Kafka: clients, topics, bounded reads and the embedded broker; the only home of confluent_kafka."""
