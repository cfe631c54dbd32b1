"""What can go wrong with an object store.

HoldfastError
└── StorageFailed       it is away, full, slow beyond its timeouts, or refuses us
    └── ObjectMissing   there is no object of that name
"""

from __future__ import annotations

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError


class StorageFailed(HoldfastError):
    """The object store did not do what it was asked for."""


class ObjectMissing(StorageFailed):
    """There is no object of that name."""


class StorageUnusable(HoldfastError):
    """The object store is configured in a way that can never work."""

    exit_code = EXIT_BAD_CONFIGURATION
