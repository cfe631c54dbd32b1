"""The settings ``HOLDFAST_KAFKA__*``."""

from __future__ import annotations

from pydantic import Field

from holdfast.infra.settings.group import Group, Properties


class KafkaSettings(Group):
    """The Kafka cluster and the embedded broker."""

    bootstrap_servers: str | None = Field(
        default=None, description="Addresses of the Kafka cluster. Unset: the embedded broker is started and used."
    )
    client_config: Properties = Field(
        default_factory=dict,
        repr=False,
        description="librdkafka settings for every client (security.protocol, sasl.*, ssl.*).",
    )
    embedded_port: int | None = Field(
        default=None, ge=1024, le=65535, description="Port of the embedded broker. Unset: a free port."
    )
    embedded_heap_mb: int = Field(default=512, ge=128, le=8192, description="Maximum heap of the embedded broker, MiB.")
