"""Errors of object stores."""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION


class StorageFailed(HoldfastError):
    """The object store is unreachable, full, too slow, or refuses this client; a later retry may succeed."""


class ObjectMissing(StorageFailed):
    """The object store has no object of that name."""


class ObjectTooLarge(StorageFailed):
    """An object is larger than its reader allows; reading stopped at the limit. Fields: object, limit."""


class ObjectOutside(StorageFailed):
    """A name leads outside of the object store; no request was sent. Fields: url, object."""


class StorageUnusable(HoldfastError):
    """The configuration of the object store can never work; a retry does not help."""

    exit_code = EXIT_BAD_CONFIGURATION
