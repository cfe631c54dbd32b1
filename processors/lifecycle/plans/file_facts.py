"""Facts of an export file whose entries are to be put back.

Invariants:
    - A file that cannot be used has a ``problem``; it is never partly described.
"""

from __future__ import annotations

import msgspec

#: Message keys of a store that a plan names; the owners export all keys of a store when the file has more.
KEYS_NAMED_MAX = 1_000


class FileStore(msgspec.Struct, frozen=True):
    """The entries of one store in a file.

    Args:
        keys: Number of message keys.
        entries: Number of entries.
        size_bytes: Bytes of their values.
        partitions: The partitions that the entries were in.
        named: The message keys as text; empty when there are more than ``KEYS_NAMED_MAX``, or one is no text.
    """

    keys: int
    entries: int
    size_bytes: int
    partitions: tuple[int, ...]
    named: tuple[str, ...] = ()


class FileFacts(msgspec.Struct, frozen=True):
    """An export file: the hash of its bytes, and its entries by store."""

    path: str
    sha256: str = ""
    stores: dict[str, FileStore] = {}
    problem: str = ""
    action: str = ""
