"""The plain fold of a changelog, and its fingerprint at an offset.

The fold here is plain Python over a dict, and shares no code with the store: an error in one shows against the other.

Invariants:
    - Reading only; neither changelog nor checkpoint is touched.
    - An offset that the changelog doesn't have is an error at once, never a long wait for records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.infra.kafka.records import Partition, Record
from holdfast.infra.kafka.topics import Topics
from holdfast.processors.audits.copies import AuditImpossible, ChangelogCopy
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.state.fingerprint import Fingerprint

__all__ = ["AuditImpossible", "FoldedPartition", "fingerprint_changelog", "fold_changelog"]


@dataclass(frozen=True, slots=True)
class FoldedPartition:
    """One changelog partition, folded from ``start`` up to ``end`` (excluded)."""

    partition: int
    start: int
    end: int
    #: Data and meta records that were read.
    records: int
    fingerprint: Fingerprint


def fold_changelog(records: Iterable[Record]) -> dict[bytes, bytes]:
    """The state that a changelog's records make: the newest value of each key, without deleted and meta keys."""
    state: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None or record.key == META_KEY:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


def fingerprint_changelog(
    bootstrap: str,
    topic: str,
    partition: int,
    end: int,
    config: Mapping[str, str | int | float | bool] | None = None,
) -> FoldedPartition:
    """Fold one changelog partition from its beginning up to ``end``, committed records only.

    Args:
        bootstrap: Kafka's bootstrap servers.
        topic: The changelog.
        partition: The partition.
        end: The offset to stop before; a checkpoint's changelog offset.
        config: Security settings.

    Raises:
        AuditImpossible: The changelog's committed part ends before ``end``.
        holdfast.infra.kafka.errors.KafkaFailed: It can't be read.
    """
    copy = ChangelogCopy(Topics(bootstrap, config), Partition(topic, partition), end, config or {})
    found = copy.prints().whole
    return FoldedPartition(partition, copy.start, end, copy.records, found)
