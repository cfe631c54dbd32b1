"""The errors of a schema registry. No message is at fault, so no failure policy puts a message aside for them."""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE


class SchemaRegistryFailed(HoldfastError):
    """The schema registry can't serve a request; the worker stops in front of the message, which is read again."""


class SchemaRegistryAway(SchemaRegistryFailed):
    """The schema registry did not answer within the time that a worker waits; a later start resumes."""

    exit_code = EXIT_BROKER_UNAVAILABLE
    cause = "schema-registry-away"


class SchemaRegistryRefuses(SchemaRegistryFailed):
    """The schema registry refuses the client or its schema: address, rights or schema must be corrected first."""

    exit_code = EXIT_BAD_CONFIGURATION
    cause = "bad-configuration"


class SchemaUnknown(ValueError):
    """The schema registry has no schema with the id of a message, or the schema has another format."""
