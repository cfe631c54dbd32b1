"""The schema registry's settings under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.infra.schemas.config import SchemaRegistryClientConfig, SchemaRegistrySerializationConfig

__all__ = ["SchemaRegistryClientConfig", "SchemaRegistrySerializationConfig"]
