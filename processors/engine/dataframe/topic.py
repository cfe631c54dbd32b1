"""Topics as an application declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.changelog.names import check_name
from holdfast.processors.engine.dataframe.serialization import Deserializer, Serializer, deserializer, serializer


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic that is created; ``replication_factor`` None takes the cluster's default."""

    num_partitions: int = 1
    replication_factor: int | None = None
    extra_config: Mapping[str, str] = field(default_factory=dict)


class Topic:
    """A declared topic: its name, its (de)serializers, and the configuration with which it is created."""

    def __init__(
        self,
        name: str,
        *,
        key_deserializer: str | Deserializer = "bytes",
        value_deserializer: str | Deserializer = "json",
        key_serializer: str | Serializer = "bytes",
        value_serializer: str | Serializer = "json",
        config: TopicConfig | None = None,
    ) -> None:
        self.name = check_name(name, "topic name")
        self.config = config
        self.deserialize_key = deserializer(key_deserializer)
        self.deserialize_value = deserializer(value_deserializer)
        self.serialize_key = serializer(key_serializer)
        self.serialize_value = serializer(value_serializer)

    def spec(self) -> TopicSpec:
        """The expected topic; partitions and replication are None unless declared."""
        if self.config is None:
            return TopicSpec(self.name)
        return TopicSpec(
            self.name, self.config.num_partitions, self.config.replication_factor, dict(self.config.extra_config)
        )
