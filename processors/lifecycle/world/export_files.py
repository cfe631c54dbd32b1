"""Reads export files (entries of stores; format: ``engine.state.exports``) on this machine, as input for plans."""

from __future__ import annotations

import hashlib
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.infra.seen_keys import SeenKeys
from holdfast.processors.engine.state.exports import Entry, entry_of
from holdfast.processors.engine.state.time.time_records import is_own
from holdfast.processors.lifecycle.plans.facts.files import KEYS_NAMED_MAX, FileFacts, FileStore


def file_facts(path: str) -> FileFacts:
    """The facts about an export file (entries of stores); a file that cannot be read has a ``problem``."""
    action = "Name a file that an export wrote, on this machine: `<home>/exports/<processor>/...jsonl`."
    digest, found = hashlib.sha256(), _Found()
    try:
        with Path(path).open("rb") as lines, SeenKeys() as seen:
            for number, line in enumerate(lines, 1):
                digest.update(line)
                if line.strip():
                    found.add(entry_of(line, number), seen)
    except OSError as failure:
        return FileFacts(path, problem=f"{path} can't be read: {failure.strerror}.", action=action)
    except HoldfastError as failure:
        return FileFacts(path, problem=f"{path}: {failure.message}", action=failure.action)
    if not found.stores:
        return FileFacts(path, problem=f"{path} has no entries.", action=action)
    return FileFacts(path, digest.hexdigest(), found.facts())


class _Found:
    """Facts of the entries of an export file that were read so far: for each store, counts, partitions and keys."""

    def __init__(self) -> None:
        self.stores: dict[str, tuple[list[int], set[int], list[str] | None]] = {}

    def add(self, entry: Entry, seen: SeenKeys) -> None:
        counts, partitions, named = self.stores.setdefault(entry.store, ([0, 0, 0], set(), []))
        # Records about time, for example a store's stream time, have no message key.
        is_new = not is_own(entry.key) and seen.add(
            b"\0".join((entry.store.encode(), str(entry.partition).encode(), entry.message_key))
        )
        counts[0] += is_new
        counts[1] += 1
        counts[2] += len(entry.stored)
        partitions.add(entry.partition)
        if named is None or not is_new:
            return
        try:
            named.append(entry.message_key.decode())
        except UnicodeDecodeError:
            named = None
        if named is None or len(named) > KEYS_NAMED_MAX:
            self.stores[entry.store] = (counts, partitions, None)

    def facts(self) -> dict[str, FileStore]:
        return {
            store: FileStore(keys, entries, size, tuple(sorted(partitions)), tuple(sorted(set(named or ()))))
            for store, ((keys, entries, size), partitions, named) in self.stores.items()
        }
