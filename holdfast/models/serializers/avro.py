"""The (de)serializers of Avro, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.engine.formats.avro import AvroDeserializer, AvroSerializer

__all__ = ["AvroDeserializer", "AvroSerializer"]
