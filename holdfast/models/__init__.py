"""Topics, messages and formats, under the import path that Quix Streams uses: ``from holdfast.models import …``."""

from __future__ import annotations

from holdfast.models.serializers import (
    BytesDeserializer,
    BytesSerializer,
    Deserializer,
    DoubleDeserializer,
    DoubleSerializer,
    IntegerDeserializer,
    IntegerSerializer,
    JSONDeserializer,
    JSONSerializer,
    SchemaRegistryClientConfig,
    SchemaRegistrySerializationConfig,
    Serializer,
    StringDeserializer,
    StringSerializer,
)
from holdfast.processors.engine.dataframe.message_context import MessageContext
from holdfast.processors.engine.formats.kafka_message import KafkaMessage
from holdfast.processors.engine.steps.topic import TimestampType, Topic, TopicConfig

# fmt: off
__all__ = [
    "BytesDeserializer", "BytesSerializer", "Deserializer", "DoubleDeserializer", "DoubleSerializer",
    "IntegerDeserializer", "IntegerSerializer", "JSONDeserializer", "JSONSerializer", "KafkaMessage", "MessageContext",
    "SchemaRegistryClientConfig", "SchemaRegistrySerializationConfig", "Serializer", "StringDeserializer",
    "StringSerializer", "TimestampType", "Topic", "TopicConfig",
]
# fmt: on
