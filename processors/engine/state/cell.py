"""The values of all message keys under one state key, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.processors.engine.changelog.format import full_keys, key_prefix


class Cell:
    """The values of all message keys under one state key: uncommitted values, and a cache in two generations.

    ``suffix`` is the state key's part of a changelog key; without a suffix the dicts use full changelog keys. ``room``
    is the limit of the bytes of dict key and value together.
    """

    __slots__ = ("dirty", "old", "room", "suffix", "young")

    def __init__(self, suffix: bytes | None, record_bytes_max: int) -> None:
        self.suffix = suffix
        self.room = record_bytes_max if suffix is None else record_bytes_max - len(key_prefix(b"")) - len(suffix)
        self.dirty: dict[bytes, bytes | None] = {}
        self.young: dict[bytes, bytes | None] = {}
        self.old: dict[bytes, bytes | None] = {}

    def full(self, place: bytes) -> bytes:
        """The changelog key of a dict key."""
        return place if self.suffix is None else key_prefix(place) + self.suffix

    def full_keys(self, places: Sequence[bytes], before: bytes) -> list[bytes]:
        """The changelog keys of dict keys, each with ``before`` in front."""
        return [before + place for place in places] if self.suffix is None else full_keys(places, self.suffix, before)

    def places(self, message_keys: Iterable[bytes], state_key: str) -> Sequence[bytes]:
        """The keys of this cell's dicts for these message keys, in order; ``state_key`` completes each one."""
        made = list(message_keys)
        return made if self.suffix is not None else full_keys(made, state_key.encode())
