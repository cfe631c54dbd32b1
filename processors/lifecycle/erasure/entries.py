"""Which entries of a store or changelog belong to a message key: its own, and those of indexes that point to it."""

# tidy: allow-crumb because it is one pure decision, which all places share

from __future__ import annotations

from holdfast.processors.engine.changelog.format import META_KEY, key_prefix
from holdfast.processors.engine.state.time.time_records import OWN, owner_of


class KeyEntries:
    """Recognises the changelog keys of one message key; ``head`` is the beginning of all its own changelog keys."""

    def __init__(self, key: str) -> None:
        self.key = key.encode()
        self.head = key_prefix(self.key)

    def has(self, changelog_key: bytes | None) -> bool:
        """Whether a changelog key belongs to the message key, directly or as an entry of an index by time."""
        if changelog_key is None or changelog_key == META_KEY:
            return False
        if changelog_key.startswith(self.head):
            return True
        return (
            changelog_key.startswith(OWN) and owner_of(changelog_key[len(OWN) :].decode(errors="replace")) == self.key
        )
