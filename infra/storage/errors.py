"""Errors of object stores.

HoldfastError
├── StorageFailed       the store is unreachable, full, too slow, or refuses this client; retry later
│   └── ObjectMissing   the store has no object of that name
└── StorageUnusable     the configuration is wrong; a retry does not help
"""

from __future__ import annotations

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError


class StorageFailed(HoldfastError):
    """The object store is unreachable, full, too slow, or refuses this client."""


class ObjectMissing(StorageFailed):
    """The object store has no object of that name."""


class StorageUnusable(HoldfastError):
    """The configuration of the object store can never work."""

    exit_code = EXIT_BAD_CONFIGURATION
