"""The (de)serializers of one format, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.models.serializers import JSONDeserializer, JSONSerializer

__all__ = ["JSONDeserializer", "JSONSerializer"]
