"""The (de)serializers of Protobuf, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.engine.formats.protobuf import ProtobufDeserializer, ProtobufSerializer

__all__ = ["ProtobufDeserializer", "ProtobufSerializer"]
