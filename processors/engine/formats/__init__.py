"""Formats of keys, values and headers in Kafka: bytes in, Python objects out, and back."""
