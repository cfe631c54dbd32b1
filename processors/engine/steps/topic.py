"""Topics that an application declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import Any, Literal

from holdfast.infra.errors import BadConfiguration
from holdfast.infra.kafka.records import Headers, TopicSpec
from holdfast.infra.schemas.codecs import RegistryReader, StampingWriter
from holdfast.processors.engine.changelog.config import REPARTITION_CONFIG
from holdfast.processors.engine.changelog.names import check_name
from holdfast.processors.engine.formats.kafka_message import (
    GivenHeaders,
    KafkaMessage,
    deserialized,
    part_of,
    serialized,
    time_of,
)
from holdfast.processors.engine.formats.serialization import (
    DeserializerChoice,
    SerializerChoice,
    deserializer,
    serializer,
    written_headers,
)
from holdfast.processors.engine.formats.topic_format import TopicFormat, connect_alone
from holdfast.processors.engine.formats.typed import model_of, model_text
from holdfast.processors.engine.formats.typed_topics import typed_deserializer, typed_serializer
from holdfast.processors.engine.steps.durations import milliseconds
from holdfast.processors.engine.steps.signatures import refuses, written


class TimestampType(IntEnum):
    """The type of a record's timestamp, with the same numbers as in the client library."""

    TIMESTAMP_NOT_AVAILABLE = 0
    TIMESTAMP_CREATE_TIME = 1
    TIMESTAMP_LOG_APPEND_TIME = 2


#: A user's function that gets (value, headers, timestamp, timestamp type) and returns the event time in ms since 1970.
TimestampExtractor = Callable[[Any, Headers, int, TimestampType], int]
EXTRACTED = ("value", "headers", "timestamp", "timestamp_type")


class TopicInvalid(BadConfiguration):
    """An argument of a topic is invalid."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration with which a topic is created.

    If ``replication_factor`` is None, the cluster's default is used.
    """

    num_partitions: int = 1
    replication_factor: int | None = None
    extra_config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Formats:
    """The (de)serializers that were given in the declaration of a topic."""

    key_deserializer: DeserializerChoice = "bytes"
    value_deserializer: DeserializerChoice = "json"
    key_serializer: SerializerChoice = "bytes"
    value_serializer: SerializerChoice = "json"
    #: The class of the values (the argument ``value`` of ``app.topic``); None for a topic without such a class.
    model: Any = None

    @property
    def lines(self) -> tuple[str, ...]:
        """Text lines that describe formats with a schema, and the class of the values.

        The lines are part of the processor's version.
        """
        given = self.key_deserializer, self.value_deserializer, self.key_serializer, self.value_serializer
        typed = () if self.model is None else (f"values {self.model.__qualname__} {model_text(self.model)}",)
        return (*(each.text for each in given if isinstance(each, TopicFormat)), *typed)

    @property
    def value_function(self) -> Callable[[Any], Any] | None:
        """The user's function that serializes values; None for a name or an object such as ``AvroSerializer``."""
        given = self.value_serializer
        return given if callable(given) and not isinstance(given, TopicFormat) else None


class Topic:
    """A declared topic: its name, its serializers and deserializers, its event times, and its configuration."""

    def __init__(  # tidy: allow-wide because these are the argument names of Quix Streams.
        self,
        name: str,
        *,
        key_deserializer: DeserializerChoice = "bytes",
        value_deserializer: DeserializerChoice = "json",
        key_serializer: SerializerChoice = "bytes",
        value_serializer: SerializerChoice = "json",
        config: TopicConfig | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        max_ahead: int | timedelta = timedelta(hours=1),
        value: Any = None,
    ) -> None:
        self.name = check_name(name, "topic name")
        self.config = config
        self.deserialize_key = deserializer(key_deserializer, name, "key")
        self.serialize_key = serializer(key_serializer, name, "key")
        #: The (de)serializers in the form in which they were declared: a name such as ``json``, a function, or an
        #: object.
        self.formats = Formats(key_deserializer, value_deserializer, key_serializer, value_serializer, value)
        model = None if value is None else model_of(value)
        self.deserialize_value = typed_deserializer(value_deserializer, name, model)
        self.serialize_value = typed_serializer(value_serializer, name, model)
        if timestamp_extractor is not None and not callable(timestamp_extractor):
            raise TopicInvalid(
                f"`timestamp_extractor` of topic {name} is {timestamp_extractor!r}, expected a function.",
                action="Pass a function of (value, headers, timestamp, timestamp_type) that returns milliseconds.",
                topic=name,
            )
        if timestamp_extractor is not None and refuses(timestamp_extractor, len(EXTRACTED)):
            raise TopicInvalid(
                f"`timestamp_extractor` of topic {name} is {written(timestamp_extractor)}, which can't be called with "
                f"({', '.join(EXTRACTED)}).",
                action="Give the function these four arguments, also those that it does not need.",
                topic=name,
            )
        self.timestamp_extractor = timestamp_extractor
        #: Maximum milliseconds by which an event time may be ahead of the worker's clock. The default is 1 hour.
        self.max_ahead_ms = milliseconds("max_ahead", max_ahead, least=0)
        #: The name of the processor whose application declared the topic; None without an application.
        self.processor: str | None = None
        #: The prefix of the default names of the topic's stores.
        self.label = name
        #: For a repartition topic, the name of its ``group_by``; empty for other topics.
        self.group_by = ""
        #: The content of a topic that the engine puts between two steps: ``join`` for the messages of a join by a
        #: foreign key, ``table groups`` for the changed rows of a table with ``group_by``. Empty for other topics.
        self.between: Literal["", "join", "table groups"] = ""
        #: The field of the value that contains the message key (``group_by`` a field); empty if a function computes the
        #: key.
        self.grouped_field = ""
        #: The number of partitions that ``group_by`` asks for; None if it asks for none.
        self.partitions: int | None = None

    @property
    def functions(self) -> tuple[Callable[[Any], Any], ...]:
        """The topic's deserializers and serializers of keys and values, as functions."""
        return self.deserialize_key, self.deserialize_value, self.serialize_key, self.serialize_value

    @property
    def repartitions(self) -> bool:
        """Whether the topic is the repartition topic of a ``group_by``."""
        return bool(self.group_by)

    def serialize(
        self, key: Any = None, value: Any = None, headers: GivenHeaders = None, timestamp_ms: int | None = None
    ) -> KafkaMessage:
        """Serializes a key and a value. Send the result with the producer of ``app.get_producer()``.

        Args:
            key: The key; None means that the message has no key.
            value: The value; None deletes the key in a compacted topic.
            headers: Header names with values, which are bytes, texts or None.
            timestamp_ms: Milliseconds since 1970; None means the time at which the message is sent.

        Raises:
            ValueUnwritable: The topic's serializers refuse the key or the value, or headers can't be written.
            SchemaRegistryFailed: The schema registry does not answer or refuses the request.
        """
        connect_alone(self.functions)
        raw = serialized("value", value, self.serialize_value, self.name)
        sent = written_headers(headers, self.name)
        if raw is not None and isinstance(self.serialize_value, StampingWriter):
            sent = self.serialize_value.stamped(sent)
        return KafkaMessage(serialized("key", key, self.serialize_key, self.name), raw, sent, timestamp_ms)

    def deserialize(self, message: Any) -> KafkaMessage:
        """Deserializes key and value, as for user functions. Headers and timestamp stay unchanged.

        Args:
            message: A message of confluent-kafka, a record of ``InMemoryCluster.read``, or a ``KafkaMessage``.

        Raises:
            ValueUnreadable: The topic's deserializers refuse the key or the value.
            SchemaRegistryFailed: The schema registry does not answer or refuses the request.
        """
        connect_alone(self.functions)
        raw, headers = part_of(message, "value"), part_of(message, "headers")
        if raw is not None and isinstance(self.deserialize_value, RegistryReader):
            raw = self.deserialize_value.framed(raw, headers)
        return KafkaMessage(
            deserialized("key", part_of(message, "key"), self.deserialize_key, self.name),
            deserialized("value", raw, self.deserialize_value, self.name),
            headers,
            time_of(message),
        )

    def spec(self) -> TopicSpec:
        """Returns the name, partitions, replication and configuration that the topic should have in Kafka.

        Partitions and replication are None unless declared.
        """
        if self.repartitions:
            return TopicSpec(self.name, self.partitions, None, REPARTITION_CONFIG)
        if self.config is None:
            return TopicSpec(self.name)
        return TopicSpec(
            self.name, self.config.num_partitions, self.config.replication_factor, dict(self.config.extra_config)
        )
