"""Folds a changelog into the state that tests compare with. It shares no code with the store or the audit."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.infra.kafka.records import Record
from holdfast.processors.engine.changelog.format import META_KEY


def fold_changelog(records: Iterable[Record]) -> dict[bytes, bytes]:
    """The state that a changelog's records make: the newest value of each key, without deleted keys and meta keys."""
    state: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None or record.key == META_KEY:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state
