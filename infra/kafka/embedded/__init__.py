"""The embedded broker: one node of Apache Kafka on loopback, and its restart after a kill."""
