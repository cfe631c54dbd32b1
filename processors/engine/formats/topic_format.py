"""Base classes of (de)serializers with arguments, such as ``AvroSerializer()``, and their schema registry clients."""

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
    """The topic, and whether a key or a value is (de)serialized; confluent-kafka's ``SerializationContext``."""

    topic: str
    #: Whether a key or a value is (de)serialized: ``key`` or ``value``.
    field: Any


class TopicFormat(ABC):
    """A (de)serializer with arguments, for example ``AvroSerializer(schema)``.

    ``bound`` returns the function that (de)serializes the keys or the values of a topic.
    """

    #: The name of the pip extra that installs the libraries of the format, for example ``avro``.
    extra: ClassVar[str]
    #: The type of the format's schemas in a schema registry, for example ``AVRO``.
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
        """The format and its schema in one line of text, which is the same in every process.

        The text is a part of the processor's version.
        """

    @abstractmethod
    def bound(self, topic: str, part: Part) -> Callable[[Any], Any]:
        """Returns the function that (de)serializes the keys or the values of one topic."""

    def __call__(self, value: Any, ctx: Context) -> Any:
        """(De)serializes one value outside of a worker, as in confluent-kafka.

        It uses the schema registry of the settings.

        Args:
            value: Bytes to read, or an object to write.
            ctx: The topic, and whether the value is a ``key`` or a ``value``.

        Raises:
            ValueError: The value does not fit the format or the schema.
            SchemaRegistryFailed: The schema registry does not answer or refuses the request.
        """
        place = ctx.topic, str(ctx.field)
        if place not in self._alone:
            made = self.bound(ctx.topic, "key" if place[1] == "key" else "value")
            connect_alone((made,))
            self._alone[place] = made
        return self._alone[place](value)


class TopicDeserializer(TopicFormat):
    """Base class of deserializers with arguments, for example ``AvroDeserializer``."""

    def of_registry(self, topic: str, part: Part, make: Any) -> RegistryReader:
        """Returns the function that deserializes with the schema registry of this object's configuration."""
        assert self.config is not None
        return RegistryReader(Use(topic, part), self.config, self.schema_type, make)


class TopicSerializer(TopicFormat):
    """Base class of serializers with arguments, for example ``AvroSerializer``."""

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
        """Returns the function that serializes with the schema registry of this object's configuration.

        Raises:
            FormatInvalid: The serializer is for keys, but its configuration writes the schema id to a header.
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
    """Create the schema registry clients of all (de)serializers that use a schema registry.

    Raises:
        SchemaRegistryFailed: A referenced schema can't be read.
        SchemaRegistryInvalid: A configuration or a schema can't be used.
    """
    for each in functions:
        if isinstance(each, Connected):
            each.connect(registries)


def connect_alone(functions: Iterable[object]) -> None:
    """Create those schema registry clients that do not exist yet. Code outside of a worker calls this function.

    The URL of the schema registry comes from Holdfast's settings.

    Raises:
        SchemaRegistryFailed: A referenced schema can't be read.
        SchemaRegistryInvalid: A configuration or a schema can't be used.
    """
    missing = [each for each in functions if isinstance(each, Connected) and not each.is_connected]
    if missing:
        from holdfast.infra.settings import load_settings

        connect_all(missing, Registries(load_settings().schema_registry))
