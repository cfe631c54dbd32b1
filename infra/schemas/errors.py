"""Errors of a schema registry. No message causes these errors, so no message is sent to dead letters."""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE


class SchemaRegistryFailed(HoldfastError):
    """The schema registry can't serve a request. The worker stops; after its next start, it reads the message again."""


class SchemaRegistryAway(SchemaRegistryFailed):
    """The schema registry did not answer within the time that a worker waits; processing continues at a later start."""

    exit_code = EXIT_BROKER_UNAVAILABLE
    cause = "schema-registry-away"


class SchemaRegistryRefuses(SchemaRegistryFailed):
    """The schema registry refuses the client or its schema, so address, rights or schema must be corrected first."""

    exit_code = EXIT_BAD_CONFIGURATION
    cause = "bad-configuration"


class SchemaUnknown(ValueError):
    """The registry has no schema with the id in a message, or that schema has another format, such as JSON for Avro."""


class NestedTooDeeply(ValueError):
    """A value has more levels than its format can write."""
