"""(De)serializers of plain types, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.models.serializers import (
    BytesDeserializer,
    BytesSerializer,
    DoubleDeserializer,
    DoubleSerializer,
    IntegerDeserializer,
    IntegerSerializer,
    StringDeserializer,
    StringSerializer,
)

# fmt: off
__all__ = [
    "BytesDeserializer", "BytesSerializer", "DoubleDeserializer", "DoubleSerializer", "IntegerDeserializer",
    "IntegerSerializer", "StringDeserializer", "StringSerializer",
]
# fmt: on
