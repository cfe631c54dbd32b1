"""Properties of confluent-kafka's (de)serializers: the name of the subject, and the place of the schema's id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.infra.schemas.config import SchemaRegistrySerializationConfig


def properties_of(config: SchemaRegistrySerializationConfig, keep_id: Callable[..., bytes] | None) -> dict[str, Any]:
    """The properties of a serializer.

    ``keep_id`` is a function that takes the schema's id. If it is None, the id is written before the bytes.
    """
    from confluent_kafka.schema_registry import prefix_schema_id_serializer

    return {
        "auto.register.schemas": config.auto_register_schemas,
        "normalize.schemas": config.normalize_schemas,
        "use.latest.version": config.use_latest_version,
        "subject.name.strategy": strategy_of(config),
        "schema.id.serializer": prefix_schema_id_serializer if keep_id is None else keep_id,
    }


def reading_properties() -> dict[str, Any]:
    """The properties of a deserializer, which expects the schema's id before the bytes (``codecs`` puts it there)."""
    from confluent_kafka import schema_registry

    return {
        "schema.id.deserializer": schema_registry.prefix_schema_id_deserializer,
        "subject.name.strategy": schema_registry.topic_subject_name_strategy,
    }


def strategy_of(config: SchemaRegistrySerializationConfig) -> Callable[[Any, str | None], str | None]:
    """The function of confluent-kafka for the strategy in the configuration; a user's function stays unchanged."""
    from confluent_kafka import schema_registry

    given = config.subject_name_strategy
    if callable(given):
        return given
    named: dict[str, Callable[[Any, str | None], str | None]] = {
        "topic": schema_registry.topic_subject_name_strategy,
        "record": schema_registry.record_subject_name_strategy,
        "topic-record": schema_registry.topic_record_subject_name_strategy,
    }
    return named[given]
