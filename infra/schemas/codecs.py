"""Readers and writers of one topic's keys or values with a schema registry, around confluent-kafka's (de)serializers.

A schema's id is before the payload (a prefix), or in a header of the record. The header's value has the same form as
the prefix. So if the id is in a header, it is put before the payload, and then the bytes are read::

    bytes        [0][id: 4 bytes][payload]        or [1][guid: 16 bytes][payload]
    header       __value_schema_id = [0][id] or [1][guid];   bytes = [payload]

Invariants:
    - If the message causes the failure (its bytes or its value are invalid), ValueError is raised.
    - If the registry does not answer or refuses the client, SchemaRegistryFailed is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.infra.kafka.records import Headers
from holdfast.infra.schemas.config import SchemaRegistryClientConfig, SchemaRegistryInvalid
from holdfast.infra.schemas.errors import NestedTooDeeply, SchemaRegistryFailed, SchemaRegistryRefuses, SchemaUnknown
from holdfast.infra.schemas.registry import PatientRegistry, Registries

Part = Literal["key", "value"]
#: "key" or "value" -> the record header with the id of its schema.
ID_HEADERS: dict[str, str] = {"key": "__key_schema_id", "value": "__value_schema_id"}
#: The greatest possible id of a schema, because registries store ids as signed 32-bit integers.
_ID_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Use:
    """The part of a topic's records that a codec reads or writes: the key or the value."""

    topic: str
    part: Part

    @property
    def context(self) -> Any:
        """confluent-kafka's context of the codec, from which the subject's name in the schema registry is made."""
        from confluent_kafka.serialization import SerializationContext

        return SerializationContext(self.topic, self.part)


class OfOneFormat:
    """A schema registry's client for one format, such as Avro; schemas of other formats count as unknown."""

    def __init__(self, registry: PatientRegistry, schema_type: str) -> None:
        self._registry, self._type = registry, schema_type

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    def get_schema(self, schema_id: int, *rest: Any) -> Any:
        """The schema with this id, cached by the client; raises SchemaUnknown if it has another format."""
        if schema_id > _ID_MAX:
            raise SchemaUnknown(f"no schema can have the id {schema_id}")
        return self._checked(self._registry.get_schema(schema_id, *rest), f"id {schema_id}")

    def get_schema_by_guid(self, guid: str, *rest: Any) -> Any:
        """The schema with this guid (global id), cached by the client; raises SchemaUnknown for another format."""
        return self._checked(self._registry.get_schema_by_guid(guid, *rest), f"guid {guid}")

    def get_latest_version(self, subject_name: str, *rest: Any) -> Any:
        """The newest version of a subject, with which a serializer writes.

        Raises:
            SchemaRegistryRefuses: Its schema has another format. No message is the cause.
        """
        found = self._registry.get_latest_version(subject_name, *rest)
        seen = found.schema.schema_type
        if seen != self._type:
            raise SchemaRegistryRefuses(
                f"The newest schema of subject {subject_name} is of format {seen}, expected {self._type}.",
                action=f"Register a schema of format {self._type} for subject {subject_name}, or use the serializer of "
                f"format {seen}. Then restart: processing resumes at this message.",
                subject=subject_name,
                seen=seen,
                expected=self._type,
            )
        return found

    def _checked(self, schema: Any, which: str) -> Any:
        if schema.schema_type != self._type:
            raise SchemaUnknown(f"the schema with {which} is of format {schema.schema_type}, expected {self._type}")
        return schema


#: A function that a serializer calls with payload, context and schema id. It stores the id elsewhere than in the bytes
#: (in a header of the record), and returns the record's bytes.
KeepId = Callable[[bytes, Any, Any], bytes]
#: A function that creates confluent-kafka's deserializer or serializer. The first argument is a client of the schema
#: registry. If the second argument is a function, a serializer passes the schema's id to it. If the second argument is
#: None, the serializer writes the id before the bytes.
Maker = Callable[[OfOneFormat, KeepId | None], Callable[[Any, Any], Any]]


class Connected:
    """A codec that needs a client of the schema registry; a worker creates the client at its start (``connect``)."""

    #: The function to which the serializer passes the schema's id; None if it writes the id before the bytes instead.
    keep_id: KeepId | None = None

    def __init__(self, use: Use, config: SchemaRegistryClientConfig, schema_type: str, make: Maker) -> None:
        self.use, self._config, self._type, self._make = use, config, schema_type, make
        self._call: Callable[[Any, Any], Any] | None = None
        self._context: Any = None

    @property
    def is_connected(self) -> bool:
        """Whether ``connect`` has created the client and the (de)serializer."""
        return self._call is not None

    def connect(self, registries: Registries) -> None:
        """Create the client and the (de)serializer.

        Raises:
            SchemaRegistryFailed: A referenced schema can't be read.
            SchemaRegistryInvalid: The configuration or the schema can't be used.
        """
        registry = OfOneFormat(registries.client(self._config), self._type)
        self._context = self.use.context
        try:
            self._call = self._make(registry, self.keep_id)
        except SchemaRegistryFailed:
            raise
        except Exception as failure:
            raise SchemaRegistryInvalid(
                f"The {self.use.part} format of topic {self.use.topic} can't be made: {failure}.",
                action="Correct the schema or the arguments of the (de)serializer.",
                topic=self.use.topic,
            ) from failure

    def _ready(self) -> Callable[[Any, Any], Any]:
        if self._call is None:
            raise SchemaRegistryRefuses(
                f"The {self.use.part} format of topic {self.use.topic} has no client of the schema registry.",
                action="Run the application, which connects it; this is a fault of Holdfast otherwise.",
                topic=self.use.topic,
            )
        return self._call


class RegistryReader(Connected):
    """Deserializes the keys or values of one topic."""

    #: Converts the value that was read to an instance of the topic's model; None for topics without a model.
    then: Callable[[Any], Any] | None = None

    def __call__(self, raw: bytes) -> Any:
        """Deserializes bytes that begin with the id of their schema.

        Raises:
            ValueError: The bytes have another form, or the schema registry has no schema with this id.
            SchemaRegistryFailed: The registry does not answer, or refuses this client.
        """
        read = self._call or self._ready()
        try:
            made = read(raw, self._context)
            return made if self.then is None else self.then(made)
        except (SchemaRegistryFailed, SchemaUnknown):
            raise
        except Exception as failure:
            if (status := getattr(failure, "http_status_code", None)) is not None:
                unknown = f"the schema registry knows no such schema (HTTP status {status}: {failure})"
                raise SchemaUnknown(unknown) from failure
            raise ValueError(_text_of(failure)) from failure

    def framed(self, raw: bytes, headers: Headers) -> bytes:
        """Puts the schema id before the bytes if a header of the record has it; otherwise returns ``raw`` unchanged."""
        for name, value in headers or ():
            if name == ID_HEADERS[self.use.part] and value is not None:
                return value + raw
        return raw


def _text_of(failure: BaseException) -> str:
    """The text of a library's error. For an error of jsonschema, the path of the invalid part is added."""
    text, seen = str(failure) or type(failure).__name__, failure.__cause__ or failure.__context__
    path = getattr(seen, "json_path", None)
    return text if path is None else f"{text} - at `{path}`"


def without_value_id(headers: Headers) -> Headers:
    """Removes the header with the schema id of the value, because steps change the value and the id no longer fits."""
    name = ID_HEADERS["value"]
    if not headers or all(each[0] != name for each in headers):
        return headers
    return [each for each in headers if each[0] != name]


class RegistryWriter(Connected):
    """Serializes the keys or values of one topic, and writes the id of the schema before the bytes."""

    #: Converts an instance of the topic's model to plain Python objects; None for topics without a model.
    before: Callable[[Any], Any] | None = None

    def __call__(self, value: Any) -> bytes:
        """Serializes a value.

        Raises:
            ValueError: The value does not fit the schema.
            NestedTooDeeply: The value has too many levels.
            SchemaRegistryFailed: The schema registry does not answer, or refuses the schema.
        """
        write = self._call or self._ready()
        try:
            made = write(value if self.before is None else self.before(value), self._context)
        except (SchemaRegistryFailed, NestedTooDeeply):
            raise
        except RecursionError as failure:
            raise NestedTooDeeply(str(failure)) from failure
        except Exception as failure:
            if (status := getattr(failure, "http_status_code", None)) is not None:
                raise self._not_registered(status, failure) from failure
            raise ValueError(_text_of(failure)) from failure
        if not isinstance(made, bytes):
            raise ValueError(f"its serializer returned {type(made).__name__}, expected bytes")
        return made

    def _not_registered(self, status: int, failure: Exception) -> SchemaRegistryRefuses:
        use = self.use
        return SchemaRegistryRefuses(
            f"The schema of the {use.part}s of topic {use.topic} is not registered (HTTP status {status}: {failure}).",
            action="Register the schema, or leave out `auto_register_schemas=False`. Then restart: processing resumes "
            "at this message.",
            topic=use.topic,
        )


class StampingWriter(RegistryWriter):
    """A writer that puts the id of the schema into a header of the record, and only the payload into the bytes."""

    def __init__(self, use: Use, config: SchemaRegistryClientConfig, schema_type: str, make: Maker) -> None:
        super().__init__(use, config, schema_type, make)
        self._stamp = b""
        self.keep_id = self._kept

    def _kept(self, payload: bytes, context: Any, schema_id: Any) -> bytes:
        """Called by confluent-kafka with the schema's id. Stores the id for the header, and returns only the payload.

        The header gets the guid of the schema. If the schema registry has no guids, the header gets the numeric id.
        """
        self._stamp = schema_id.id_to_bytes() if schema_id.guid is None else schema_id.guid_to_bytes()
        return payload

    def stamped(self, headers: Headers) -> Headers:
        """The headers of a record, plus the header with the schema id of the value that was serialized last."""
        name = ID_HEADERS[self.use.part]
        return [*(each for each in headers or () if each[0] != name), (name, self._stamp)]
