"""Errors of the registry."""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION


class RegistryUnavailable(HoldfastError):
    """The database of the registry can't be opened, read or written."""


class RegistryNewerThanCode(HoldfastError):
    """A newer Holdfast wrote the registry's schema."""

    exit_code = EXIT_BAD_CONFIGURATION


class RecordUnknown(HoldfastError):
    """The registry has no record with this identity."""


class HoldLost(HoldfastError):
    """The run no longer holds the apply or incident that it works on. Fields: of, id, token."""


class HeldByRecovery(HoldfastError):
    """A live recovery run holds the processor. Fields: processor, incident, run."""
