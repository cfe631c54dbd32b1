"""Topics as an application declares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import Any

from holdfast.infra.errors import BadConfiguration
from holdfast.infra.kafka.records import Headers, TopicSpec
from holdfast.processors.engine.changelog.config import REPARTITION_CONFIG
from holdfast.processors.engine.changelog.names import check_name
from holdfast.processors.engine.formats.kafka_message import (
    GivenHeaders,
    KafkaMessage,
    deserialized,
    headers_of,
    part_of,
    serialized,
    time_of,
)
from holdfast.processors.engine.formats.serialization import Deserializer, Serializer, deserializer, serializer
from holdfast.processors.engine.steps.durations import milliseconds
from holdfast.processors.engine.steps.signatures import refuses, written


class TimestampType(IntEnum):
    """The type of a record's timestamp; the values are those of the client library."""

    TIMESTAMP_NOT_AVAILABLE = 0
    TIMESTAMP_CREATE_TIME = 1
    TIMESTAMP_LOG_APPEND_TIME = 2


#: Returns the event time in milliseconds since 1970, from the value, the headers, the record's timestamp and its type.
TimestampExtractor = Callable[[Any, Headers, int, TimestampType], int]
EXTRACTED = ("value", "headers", "timestamp", "timestamp_type")


class TopicInvalid(BadConfiguration):
    """An argument of a topic can't be used."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic to create; ``replication_factor`` None means the cluster's default."""

    num_partitions: int = 1
    replication_factor: int | None = None
    extra_config: Mapping[str, str] = field(default_factory=dict)


class Topic:
    """A declared topic: its name, its (de)serializers, its event times, and the configuration for its creation."""

    def __init__(  # tidy: allow-wide because these are the argument names of Quix Streams.
        self,
        name: str,
        *,
        key_deserializer: str | Deserializer = "bytes",
        value_deserializer: str | Deserializer = "json",
        key_serializer: str | Serializer = "bytes",
        value_serializer: str | Serializer = "json",
        config: TopicConfig | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        max_ahead: int | timedelta = timedelta(hours=1),
    ) -> None:
        self.name = check_name(name, "topic name")
        self.config = config
        self.deserialize_key = deserializer(key_deserializer)
        self.deserialize_value = deserializer(value_deserializer)
        self.serialize_key = serializer(key_serializer)
        self.serialize_value = serializer(value_serializer)
        #: The user's function that serializes values; None for a format by name.
        self.value_function = value_serializer if callable(value_serializer) else None
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
        #: How far ahead of the worker's clock event times may be, in milliseconds.
        self.max_ahead_ms = milliseconds("max_ahead", max_ahead, least=0)
        #: The processor whose application declared the topic; None for a topic outside of an application.
        self.processor: str | None = None
        #: The prefix of store names that the user does not choose.
        self.label = name
        #: The name of the ``group_by`` of this repartition topic; empty for other topics.
        self.group_by = ""
        #: Whether the topic is between two steps of a join by a foreign key.
        self.of_join = False
        #: The field whose values are the topic's keys; empty if a function computes them.
        self.grouped_field = ""
        #: How many partitions that declares.
        self.partitions: int | None = None

    @property
    def repartitions(self) -> bool:
        """Whether the topic is the repartition topic of a ``group_by``."""
        return bool(self.group_by)

    def serialize(
        self, key: Any = None, value: Any = None, headers: GivenHeaders = None, timestamp_ms: int | None = None
    ) -> KafkaMessage:
        """A message with the bytes of key and value, for a producer of ``app.get_producer``.

        Args:
            key: The key; None for none.
            value: The value; None deletes the key in a compacted topic.
            headers: Names with bytes, texts or None.
            timestamp_ms: Milliseconds since 1970; None for the time of sending.

        Raises:
            ValueUnwritable: The topic's serializers refuse the key or the value, or headers can't be written.
        """
        return KafkaMessage(
            serialized("key", key, self.serialize_key, self.name),
            serialized("value", value, self.serialize_value, self.name),
            headers_of(headers, self.name),
            timestamp_ms,
        )

    def deserialize(self, message: Any) -> KafkaMessage:
        """The same with key and value as functions get them.

        Args:
            message: A message of confluent-kafka, a record of ``InMemoryCluster.read``, or a ``KafkaMessage``.

        Raises:
            ValueUnreadable: The topic's deserializers refuse the key or the value.
        """
        return KafkaMessage(
            deserialized("key", part_of(message, "key"), self.deserialize_key, self.name),
            deserialized("value", part_of(message, "value"), self.deserialize_value, self.name),
            part_of(message, "headers"),
            time_of(message),
        )

    def spec(self) -> TopicSpec:
        """The expected topic; partitions and replication are None unless declared."""
        if self.repartitions:
            return TopicSpec(self.name, self.partitions, None, REPARTITION_CONFIG)
        if self.config is None:
            return TopicSpec(self.name)
        return TopicSpec(
            self.name, self.config.num_partitions, self.config.replication_factor, dict(self.config.extra_config)
        )
