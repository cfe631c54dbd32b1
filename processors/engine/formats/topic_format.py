"""(De)serializers as objects: what each topic makes of them, and how they reach a schema registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from holdfast.infra.errors import BadConfiguration
from holdfast.infra.installation import check_extras
from holdfast.infra.schemas.codecs import Connected, Part, RegistryReader, RegistryWriter, StampingWriter, Use
from holdfast.infra.schemas.config import SchemaRegistryClientConfig, SchemaRegistrySerializationConfig
from holdfast.infra.schemas.registry import Registries


class FormatInvalid(BadConfiguration):
    """The arguments of a (de)serializer can't be used."""


class Context(Protocol):
    """What a message's (de)serialization is for; confluent-kafka's ``SerializationContext`` fits."""

    topic: str
    #: ``key`` or ``value``.
    field: Any


class TopicFormat(ABC):
    """A (de)serializer with arguments; each topic makes a function of its own of it."""

    #: The extra whose libraries the format needs.
    extra: ClassVar[str]
    #: The format of its schemas in a registry.
    schema_type: ClassVar[str]

    def __init__(self, config: SchemaRegistryClientConfig | None) -> None:
        check_extras(self.extra)
        if config is not None:
            check_extras("schema-registry")
        if config is not None and not isinstance(config, SchemaRegistryClientConfig):
            raise FormatInvalid(
                f"`schema_registry_client_config` is {type(config).__name__}, expected SchemaRegistryClientConfig.",
                action="Pass `SchemaRegistryClientConfig()`, which takes the registry of the settings.",
            )
        self.config = config
        self._alone: dict[tuple[str, str], Callable[[Any], Any]] = {}

    @property
    @abstractmethod
    def text(self) -> str:
        """The format with its schema in a line that is the same in each process: part of the processor's version."""

    @abstractmethod
    def bound(self, topic: str, part: Part) -> Callable[[Any], Any]:
        """The function for one topic's keys or values."""

    def __call__(self, value: Any, ctx: Context) -> Any:
        """(De)serialize outside of a worker, as in confluent-kafka; the registry is that of the settings.

        Args:
            value: Bytes to read, or an object to write.
            ctx: The topic, and whether it is its ``key`` or ``value``.

        Raises:
            ValueError: The value does not fit.
            SchemaRegistryFailed: The registry can't serve.
        """
        place = ctx.topic, str(ctx.field)
        if place not in self._alone:
            made = self.bound(ctx.topic, "key" if place[1] == "key" else "value")
            connect_alone((made,))
            self._alone[place] = made
        return self._alone[place](value)


class TopicDeserializer(TopicFormat):
    """A deserializer with arguments."""

    def of_registry(self, topic: str, part: Part, make: Any) -> RegistryReader:
        """The reader with the registry of this format."""
        assert self.config is not None
        return RegistryReader(Use(topic, part), self.config, self.schema_type, make)


class TopicSerializer(TopicFormat):
    """A serializer with arguments."""

    def __init__(
        self, config: SchemaRegistryClientConfig | None, writing: SchemaRegistrySerializationConfig | None
    ) -> None:
        super().__init__(config)
        if writing is not None and config is None:
            raise FormatInvalid(
                "`schema_registry_serialization_config` is set without `schema_registry_client_config`.",
                action="Add `schema_registry_client_config=SchemaRegistryClientConfig()`.",
            )
        self.writing = writing or SchemaRegistrySerializationConfig()

    def of_registry(self, topic: str, part: Part, make: Any) -> RegistryWriter:
        """The writer with the registry of this format.

        Raises:
            FormatInvalid: The id of a key's schema would go to a header.
        """
        assert self.config is not None
        if self.writing.schema_id == "prefix":
            return RegistryWriter(Use(topic, part), self.config, self.schema_type, make)
        if part == "key":
            raise FormatInvalid(
                f"The key serializer of topic {topic} has `schema_id='header'`: state, windows and timers keep keys "
                "without headers.",
                action="Leave `schema_id` out for keys.",
                topic=topic,
            )
        return StampingWriter(Use(topic, part), self.config, self.schema_type, make)


def connect_all(functions: Iterable[object], registries: Registries) -> None:
    """Make the clients of all (de)serializers that have a schema registry.

    Raises:
        SchemaRegistryFailed: A referenced schema can't be read.
        SchemaRegistryInvalid: A configuration or a schema can't be used.
    """
    for each in functions:
        if isinstance(each, Connected):
            each.connect(registries)


def connect_alone(functions: Iterable[object]) -> None:
    """Make the clients that are missing, outside of a worker; the registry is that of the settings.

    Raises:
        SchemaRegistryFailed: A referenced schema can't be read.
        SchemaRegistryInvalid: A configuration or a schema can't be used.
    """
    missing = [each for each in functions if isinstance(each, Connected) and not each.is_connected]
    if missing:
        from holdfast.infra.settings import load_settings

        connect_all(missing, Registries(load_settings().schema_registry))
