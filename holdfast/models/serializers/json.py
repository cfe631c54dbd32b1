"""The (de)serializers of one format, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.engine.formats.json_schema import JSONDeserializer, JSONSerializer

__all__ = ["JSONDeserializer", "JSONSerializer"]
