"""Readers and writers of Avro: confluent-kafka's if a schema registry is used, otherwise those of fastavro."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from holdfast.infra.schemas.avro_bounds import PayloadCheck, check_depth, field_names, is_recursive, payload_check
from holdfast.infra.schemas.codecs import KeepId, Maker, OfOneFormat
from holdfast.infra.schemas.config import SchemaRegistryInvalid, SchemaRegistrySerializationConfig
from holdfast.infra.schemas.subjects import properties_of, reading_properties

TYPE = "AVRO"
#: Length, in bytes, of the prefix of a message: a zero byte, and the id of the message's schema in four bytes.
_PREFIX = 5


def schema_text(schema: Any) -> str:
    """A schema as JSON text with sorted keys, so that the text is the same in each process.

    Args:
        schema: JSON as text or as Python objects, or confluent-kafka's ``Schema``, which may have references.

    Raises:
        SchemaRegistryInvalid: The schema is not JSON.
    """
    text = getattr(schema, "schema_str", schema)
    try:
        plain = json.loads(text) if isinstance(text, str) else text
        return json.dumps(plain, sort_keys=True)
    except (ValueError, TypeError) as failure:
        raise SchemaRegistryInvalid(
            f"A schema is no JSON: {failure}.",
            action='Pass a dict, or its JSON as text, as {"type": "record", "name": "Order", "fields": [...]}.',
        ) from failure


def references_text(schema: Any) -> str:
    """The references of confluent-kafka's ``Schema`` to other schemas, as text; empty if it has none."""
    references = getattr(schema, "references", None) or ()
    return "".join(f" {each.name}={each.subject}@{each.version}" for each in references)


def version_text(schema: Any) -> str:
    """A schema with its references as text, the same in each process; a part of the processor's code version."""
    return "none" if schema is None else schema_text(schema) + references_text(schema)


def registered_form(schema: Any, schema_type: str) -> Any:
    """Converts a schema to confluent-kafka's ``Schema``, with its references."""
    from confluent_kafka.schema_registry import Schema

    if hasattr(schema, "schema_str"):
        return schema
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return Schema(text, schema_type)


def reader_of(schema: Any, *, return_record_name: bool) -> Maker:
    """Returns a function that creates a deserializer.

    ``schema`` is the schema of the reader. If it is None, each message is read with the schema of its writer.
    """

    def make(registry: OfOneFormat, keep_id: KeepId | None) -> Callable[[Any, Any], Any]:
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        form = None if schema is None else registered_form(schema, TYPE)
        guard = _Guard(registry)
        made: Callable[[Any, Any], Any] = AvroDeserializer(
            registry,
            form,
            return_record_name=return_record_name,
            conf={**reading_properties(), "schema.id.deserializer": guard.read_id},
        )
        if form is not None:
            guard.kept = field_names(*_resolved(registry, form))
        if schema is not None and references_text(schema):
            return made
        return _quick(guard, made, None if schema is None else _parsed(schema), return_record_name)

    return make


class _Guard:
    """Checks payloads before confluent-kafka's deserializer decodes them (``avro_bounds``)."""

    def __init__(self, registry: OfOneFormat) -> None:
        self.registry = registry
        #: Names of the fields in the reader's schema; None if messages are read as they were written.
        self.kept: frozenset[str] | None = None
        #: Id or guid of a schema -> the check of its payloads; None if they need none.
        self.checks: dict[int | str, PayloadCheck | None] = {}

    def read_id(self, raw: bytes, context: Any, schema_id: Any) -> BytesIO:
        """Reads the id of the schema, as the deserializer asks for, and raises ValueError for a harmful payload."""
        from confluent_kafka.schema_registry import prefix_schema_id_deserializer

        payload: BytesIO = prefix_schema_id_deserializer(raw, context, schema_id)
        which = str(schema_id.guid) if schema_id.id is None else schema_id.id
        if which not in self.checks:
            self.checks[which] = self._check_of(which, _subject(context))
        check = self.checks[which]
        if check is not None:
            check(raw, payload.tell())
        return payload

    def _check_of(self, which: int | str, subject: str) -> PayloadCheck | None:
        if isinstance(which, str):
            schema = self.registry.get_schema_by_guid(which)
        else:
            schema = self.registry.get_schema(which, subject)
        # Rules of this phase, such as an encryption, change the payload before it is Avro.
        if getattr(getattr(schema, "rule_set", None), "encoding_rules", None):
            return None
        # Confluent's deserializer gives such a payload back as it is.
        return (
            None
            if _is_only_bytes(json.loads(schema.schema_str))
            else payload_check(*_resolved(self.registry, schema), self.kept)
        )


def _subject(context: Any) -> str:
    return f"{context.topic}-{context.field}"


def _quick(
    guard: _Guard, read: Callable[[Any, Any], Any], wanted: Any, return_record_name: bool
) -> Callable[[Any, Any], Any]:
    """Wraps a deserializer so that it is five times as fast from the second message of a schema on.

    The first message of each schema is read by ``read``, confluent-kafka's deserializer. This deserializer prepares
    rules again for each message. Messages of a schema with rules or references are always read by confluent-kafka's
    deserializer.
    """
    from fastavro import schemaless_reader

    known: dict[bytes, Any] = {}
    # Schemas whose payloads need a check are kept apart, so that messages of other schemas do not pay for the check.
    checked: dict[bytes, tuple[Any, PayloadCheck]] = {}

    def quick(raw: bytes, context: Any) -> Any:
        written = known.get(raw[:_PREFIX])
        if written is None or len(raw) == _PREFIX:
            if raw[:_PREFIX] not in checked or len(raw) == _PREFIX:
                return learned(raw, context)
            written, check = checked[raw[:_PREFIX]]
            check(raw, _PREFIX)
        source = BytesIO(raw)
        source.seek(_PREFIX)
        try:
            return schemaless_reader(source, written, wanted, return_record_name)
        except EOFError as failure:
            raise ValueError(f"it is no Avro of its schema: {_reason(failure)}") from failure

    def learned(raw: bytes, context: Any) -> Any:
        try:
            value = read(raw, context)
        except EOFError as failure:
            raise ValueError(f"it is no Avro of its schema: {_reason(failure)}") from failure
        if raw[:1] == b"\0" and (parsed := _without_rules(guard.registry, raw, context)) is not None:
            check = guard.checks[_id_of(raw)]
            if check is None:
                known[raw[:_PREFIX]] = parsed
            else:
                checked[raw[:_PREFIX]] = parsed, check
        return value

    return quick


def _reason(failure: Exception) -> str:
    """Why fastavro can't read a value. Its error about bytes that end too early has no text."""
    return str(failure) or ("the bytes end too early" if isinstance(failure, EOFError) else type(failure).__name__)


def _id_of(raw: bytes) -> int:
    return int.from_bytes(raw[1:_PREFIX], "big")


def _without_rules(registry: OfOneFormat, raw: bytes, context: Any) -> Any:
    """The parsed schema of a message; None if the schema has rules or references, or is only ``bytes``."""
    schema = registry.get_schema(_id_of(raw), _subject(context))
    if getattr(schema, "rule_set", None) is not None or schema.references:
        return None
    plain = json.loads(schema.schema_str)
    return None if _is_only_bytes(plain) else _parsed(plain)


def _is_only_bytes(plain: Any) -> bool:
    return plain == "bytes" or (isinstance(plain, dict) and plain.get("type") == "bytes")


def _resolved(registry: OfOneFormat, schema: Any) -> tuple[Any, dict[str, Any]]:
    """A schema of the registry as fastavro parses it, and all schemas that it refers to, by their names."""
    from fastavro import parse_schema

    named: dict[str, Any] = {}
    seen: set[tuple[str, int]] = set()

    def parsed(each: Any) -> Any:
        for reference in each.references or ():
            if (reference.subject, reference.version) not in seen:
                seen.add((reference.subject, reference.version))
                # Confluent's deserializer asks in the same way, with schemas that were deleted, so the client has it.
                parsed(registry.get_version(reference.subject, reference.version, True).schema)
        return parse_schema(json.loads(each.schema_str), named_schemas=named)

    return parsed(schema), named


def writer_of(schema: Any, config: SchemaRegistrySerializationConfig, further: Mapping[str, Any]) -> Maker:
    """Returns a function that creates a serializer; ``further`` has more properties of confluent-kafka's serializer."""

    def make(registry: OfOneFormat, keep_id: KeepId | None) -> Callable[[Any, Any], Any]:
        from confluent_kafka.schema_registry.avro import AvroSerializer

        form = registered_form(schema, TYPE)
        made: Callable[[Any, Any], Any] = AvroSerializer(
            registry, form, conf={**properties_of(config, keep_id), **further}
        )
        # The latest version in the registry may be recursive, even if the given schema is not.
        if not config.use_latest_version and not is_recursive(*_resolved(registry, form)):
            return made

        def write(value: Any, context: Any) -> Any:
            check_depth(value)
            return made(value, context)

        return write

    return make


def plain_reader(schema: Any, reader_schema: Any, options: Mapping[str, Any]) -> Callable[[bytes], Any]:
    """Returns a reader of Avro without a schema registry: the bytes have no schema id; ``schema`` is the writer's."""
    from fastavro import schemaless_reader

    written, wanted = _parsed(schema), None if reader_schema is None else _parsed(reader_schema)
    check = payload_check(written, kept=None if wanted is None else field_names(wanted))

    def read(raw: bytes) -> Any:
        source = BytesIO(raw)
        try:
            made = schemaless_reader(source, written, wanted, **options)
        except Exception as failure:
            raise ValueError(f"it is no Avro of this schema: {_reason(failure)}") from failure
        if source.tell() != len(raw):
            raise ValueError(f"{len(raw) - source.tell()} bytes are left behind the Avro value")
        return made

    def read_checked(raw: bytes) -> Any:
        assert check is not None
        check(raw, 0)
        return read(raw)

    return read if check is None else read_checked


def plain_writer(schema: Any, options: Mapping[str, Any]) -> Callable[[Any], bytes]:
    """Returns a writer of Avro without a schema registry: the bytes contain only the payload, and no schema id."""
    from fastavro import schemaless_writer

    parsed = _parsed(schema)

    def write(value: Any) -> bytes:
        made = BytesIO()
        try:
            schemaless_writer(made, parsed, value, **options)
        except Exception as failure:
            raise ValueError(str(failure) or type(failure).__name__) from failure
        return made.getvalue()

    def write_checked(value: Any) -> bytes:
        check_depth(value)
        return write(value)

    return write_checked if is_recursive(parsed) else write


def _parsed(schema: Any) -> Any:
    from fastavro import parse_schema

    try:
        return parse_schema(json.loads(schema_text(schema)))
    except Exception as failure:
        raise SchemaRegistryInvalid(
            f"fastavro can't read an Avro schema: {failure}.", action="Correct the schema."
        ) from failure


def check_schema(schema: Any) -> None:
    """Raises SchemaRegistryInvalid if a schema is not valid Avro.

    A schema with references is not checked here, but when the worker starts.
    """
    if not references_text(schema):
        _parsed(schema)
