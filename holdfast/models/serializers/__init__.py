"""(De)serializers of keys and values, under the import path that Quix Streams uses.

The (de)serializers of plain types are the same as Holdfast's names of formats: ``IntegerSerializer()`` is ``"int"``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.infra.schemas.config import SchemaRegistryClientConfig, SchemaRegistrySerializationConfig
from holdfast.processors.engine.formats import json_schema
from holdfast.processors.engine.formats.serialization import Deserializer, Serializer, deserializer, serializer

BytesDeserializer, BytesSerializer = partial(deserializer, "bytes"), partial(serializer, "bytes")
DoubleDeserializer, DoubleSerializer = partial(deserializer, "double"), partial(serializer, "double")
IntegerDeserializer, IntegerSerializer = partial(deserializer, "int"), partial(serializer, "int")


def JSONDeserializer(schema: Any = None, **given: Any) -> Any:  # the name is that of a class of Quix Streams
    """A deserializer of JSON. With a schema or other arguments, it is ``holdfast.JSONDeserializer(schema, ...)``."""
    return json_schema.JSONDeserializer(schema, **given) if schema is not None or given else deserializer("json")


def JSONSerializer(schema: Any = None, **given: Any) -> Any:  # the name is that of a class of Quix Streams
    """A serializer of JSON. With a schema or other arguments, it is ``holdfast.JSONSerializer(schema, ...)``."""
    return json_schema.JSONSerializer(schema, **given) if schema is not None or given else serializer("json")


def StringDeserializer(codec: str = "utf_8") -> Deserializer:  # the name is that of a class of Quix Streams
    """A deserializer of text. ``codec`` is the name of a Python encoding, for example ``latin_1``."""
    return deserializer("str") if codec == "utf_8" else deserializer(lambda raw: raw.decode(codec))


def StringSerializer(codec: str = "utf_8") -> Serializer:  # the name is that of a class of Quix Streams
    """A serializer of text. ``codec`` is the name of a Python encoding, for example ``latin_1``."""
    return serializer("str") if codec == "utf_8" else serializer(lambda text: text.encode(codec))


# fmt: off
__all__ = [
    "BytesDeserializer", "BytesSerializer", "Deserializer", "DoubleDeserializer", "DoubleSerializer",
    "IntegerDeserializer", "IntegerSerializer", "JSONDeserializer", "JSONSerializer", "SchemaRegistryClientConfig",
    "SchemaRegistrySerializationConfig", "Serializer", "StringDeserializer", "StringSerializer",
]
# fmt: on
