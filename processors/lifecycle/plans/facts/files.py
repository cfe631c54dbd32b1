"""Data classes that describe an export file: a file with entries of stores, which a plan will write back to the stores.

Invariants:
    - A file that cannot be used has only a ``problem``, and no facts about its entries.
"""

from __future__ import annotations

import msgspec

#: Maximum number of message keys that a plan lists for a store. If the file has more keys, the workers first export all
#: keys of the store before they change it.
KEYS_NAMED_MAX = 1_000


class FileStore(msgspec.Struct, frozen=True):
    """The entries of one store in an export file.

    Args:
        keys: Number of message keys.
        entries: Number of entries.
        size_bytes: Total bytes of the entries' values.
        partitions: The partitions from which the entries were exported.
        named: The message keys as text; empty if there are more than ``KEYS_NAMED_MAX``, or if a key is not text.
    """

    keys: int
    entries: int
    size_bytes: int
    partitions: tuple[int, ...]
    named: tuple[str, ...] = ()


class FileFacts(msgspec.Struct, frozen=True):
    """An export file: its path, the SHA-256 of its bytes, and facts about its entries by store."""

    path: str
    sha256: str = ""
    stores: dict[str, FileStore] = {}
    problem: str = ""
    action: str = ""
