"""The offsets up to which the data of a task's database is complete. They are stored in the database, with the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from holdfast.processors.engine.changelog.format import Commands, decode_json, encode_json, unknown_version
from holdfast.processors.engine.state.databases.database import DatabaseCorrupt

META_VERSION = 1

#: In the offsets of a store, this text replaces the changelog's topic id while the changelog is rewritten from local
#: state.
RESEEDING = "re-seeding"


class StoreOffset(NamedTuple):
    """The position in a store's changelog up to which the store's data is complete. It is stored as a JSON list.

    ``offset`` is the next changelog offset to replay. ``inputs`` are the input offsets of the last commit before
    ``offset``.
    """

    topic: str
    topic_id: str
    offset: int
    inputs: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class TaskMeta:
    """The offsets up to which a task's local data is complete. They are stored in the task's database, with the data.

    Attributes:
        inputs: The next input offset of each topic; the data includes the effects of all earlier messages.
        restoring: Whether a replay is incomplete. The data then matches no input offset.
        complete_at: The last time at which the data matched the whole changelog, in wall-clock seconds since 1970. A
            replay changes this time only when it reaches the changelog's end. Tombstones that Kafka removed after this
            time may be missing in the data.
        commands: Names of the owner commands (changes that an operator requested) whose effects are in the data, oldest
            first.
        keys: For each store, lines of text that describe how the keys of its data were made, for example by
            ``group_by``. A store has no entry if no commit recorded the lines.
    """

    inputs: Mapping[str, int] = field(default_factory=dict)
    stores: Mapping[str, StoreOffset] = field(default_factory=dict)
    transaction: int = 0
    restoring: bool = False
    complete_at: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict)
    version: int = META_VERSION
    commands: Commands = msgspec.UNSET
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def reseeding(self) -> bool:
        """Whether the changelog of a store is being rewritten from this data."""
        return any(at.topic_id == RESEEDING for at in self.stores.values())

    def encode(self) -> bytes:
        """Encodes the offsets as JSON."""
        return encode_json(self)

    @staticmethod
    def decode(raw: bytes) -> TaskMeta:
        """Decodes offsets from JSON.

        Raises:
            FormatUnknown: The bytes have another format version.
            DatabaseCorrupt: The bytes are not JSON, or a field is missing.
        """
        try:
            fields = decode_json(raw)
            if (version := fields.get("version")) == META_VERSION:
                return msgspec.convert(fields, TaskMeta)
        except (ValueError, AttributeError, RecursionError) as failure:
            raise DatabaseCorrupt(f"the offsets can't be decoded ({failure}): {raw[:60]!r}") from failure
        action = "Run the Holdfast version that wrote it, or delete the folder to restore from the changelog."
        raise unknown_version("A state folder", version, META_VERSION, action=action)
