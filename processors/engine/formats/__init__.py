"""Converts keys, values and headers between Python objects and the bytes in Kafka."""
