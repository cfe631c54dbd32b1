"""Errors of object stores (folders, S3, and other stores with an fsspec driver)."""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION


class StorageFailed(HoldfastError):
    """The object store is unreachable, full, too slow, or refuses this client; a later retry may succeed."""


class ObjectMissing(StorageFailed):
    """The object store has no object with this name."""


class ObjectTooLarge(StorageFailed):
    """An object is larger than the maximum size for its kind; the read stopped at the limit. Fields: object, limit."""


class ObjectOutside(StorageFailed):
    """An object's name, such as ``../x``, leads outside of the store; no request was sent. Fields: url, object."""


class StorageUnusable(HoldfastError):
    """The configuration of the object store is wrong; a retry does not help."""

    exit_code = EXIT_BAD_CONFIGURATION
