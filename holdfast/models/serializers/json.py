"""The (de)serializers of JSON, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.models.serializers import JSONDeserializer, JSONSerializer

__all__ = ["JSONDeserializer", "JSONSerializer"]
