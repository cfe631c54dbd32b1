"""The errors of the registry."""

from __future__ import annotations

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError


class RegistryUnavailable(HoldfastError):
    """The registry's database can't be opened, read or written."""


class RegistryNewerThanCode(HoldfastError):
    """The registry's schema was written by a newer Holdfast than this one."""

    exit_code = EXIT_BAD_CONFIGURATION


class RecordUnknown(HoldfastError):
    """A record was addressed that the registry doesn't hold."""
