"""Avro, JSON Schema and Protobuf: the client of a schema registry, and the (de)serializers of confluent-kafka."""
