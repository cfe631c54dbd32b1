"""In-memory values of one state key (the name under which a function keeps a value for each message key)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.processors.engine.changelog.format import full_keys, key_prefix


class Cell:
    """Maps message keys to values of one state key: uncommitted values (``dirty``), and cached committed values.

    The cache has two dicts: ``young`` with the values used most recently, and ``old``. ``suffix`` is the state key as
    bytes. A changelog key is made of the message key and this suffix. If ``suffix`` is None, the cell serves many state
    keys, and the keys of its dicts are full changelog keys. ``room`` is the maximum length of a dict key and its value
    together, in bytes.
    """

    __slots__ = ("dirty", "old", "room", "suffix", "young")

    def __init__(self, suffix: bytes | None, record_bytes_max: int) -> None:
        self.suffix = suffix
        self.room = record_bytes_max if suffix is None else record_bytes_max - len(key_prefix(b"")) - len(suffix)
        self.dirty: dict[bytes, bytes | None] = {}
        self.young: dict[bytes, bytes | None] = {}
        self.old: dict[bytes, bytes | None] = {}

    def full(self, place: bytes) -> bytes:
        """Returns the changelog key for ``place``, which is a key of this cell's dicts."""
        return place if self.suffix is None else key_prefix(place) + self.suffix

    def full_keys(self, places: Sequence[bytes], before: bytes) -> list[bytes]:
        """Returns the changelog keys for ``places`` (keys of this cell's dicts). Each result begins with ``before``."""
        return [before + place for place in places] if self.suffix is None else full_keys(places, self.suffix, before)

    def places(self, message_keys: Iterable[bytes], state_key: str) -> Sequence[bytes]:
        """Returns, for each message key, the key that this cell's dicts use for it, in the same order.

        In a cell of many state keys, ``state_key`` is a part of each dict key.
        """
        made = list(message_keys)
        return made if self.suffix is not None else full_keys(made, state_key.encode())
