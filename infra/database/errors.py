"""Errors of Holdfast's registry (the database of incidents, deployments, plans and snapshots)."""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION


class RegistryUnavailable(HoldfastError):
    """The database of the registry can't be opened, read or written."""


class RegistryNewerThanCode(HoldfastError):
    """The registry's schema has a version that only a newer version of Holdfast knows."""

    exit_code = EXIT_BAD_CONFIGURATION


class RecordUnknown(HoldfastError):
    """The registry has no record with the given id."""


class HoldLost(HoldfastError):
    """This run no longer holds the apply or incident that it works on, so it must stop. Fields: of, id, token."""


class HeldByRecovery(HoldfastError):
    """A live recovery run works on the processor, so no apply can begin. Fields: processor, incident, run."""
