"""Errors of object stores."""

from __future__ import annotations

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError


class StorageFailed(HoldfastError):
    """The object store is unreachable, full, too slow, or refuses this client; a later retry may succeed."""


class ObjectMissing(StorageFailed):
    """The object store has no object of that name."""


class StorageUnusable(HoldfastError):
    """The configuration of the object store can never work; a retry does not help."""

    exit_code = EXIT_BAD_CONFIGURATION
