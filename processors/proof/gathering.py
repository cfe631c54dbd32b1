"""Gathers the input of a proof: the last committed messages of each input topic, and the state of their keys.

Invariants:
    - Messages are read without a consumer group. State is read from a checkpoint, never from a live store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.reader import read_range_for_proof
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.audits.stores import store_partitions
from holdfast.processors.lifecycle.plans.stages import ProveVersion
from holdfast.processors.proof import refusal
from holdfast.processors.proof.documents import Message

#: Number of offsets to read for each requested message. Transaction markers and compaction leave offsets without a
#: record.
OFFSETS_EACH = 4


def last_messages(
    topics: Topics, processor: str, stage: ProveVersion
) -> tuple[dict[str, int], dict[str, dict[int, tuple[Message, ...]]]]:
    """Returns two mappings: topic -> number of partitions; topic -> partition -> last committed messages."""
    counts = {name: facts.partitions for name, facts in topics.describe(stage.inputs).items()}
    committed = topics.committed_offsets(processor)
    starts = topics.offsets_of_all(counts, "start")
    messages: dict[str, dict[int, tuple[Message, ...]]] = {}
    for topic, count in counts.items():
        each = -(-stage.messages // count)
        for number in range(count):
            end = committed.get(Partition(topic, number), 0)
            start = max(starts[topic].get(number, 0), end - each * OFFSETS_EACH)
            found = list(messages_of(topics, topic, number, start, end))[-each:]
            if found:
                messages.setdefault(topic, {})[number] = tuple(found)
    return counts, messages


def messages_of(topics: Topics, topic: str, number: int, start: int, end: int) -> Iterable[Message]:
    """The committed messages of a partition with offsets from ``start`` to ``end - 1``."""
    for record in read_range_for_proof(topics.bootstrap, topic, number, start, end, extra_config=topics.client_config):
        headers = tuple(record.headers or ())
        yield Message(record.offset, record.key, record.value, record.timestamp_ms, headers)


def state_of(
    messages: Mapping[str, Mapping[int, tuple[Message, ...]]],
    stores: Sequence[str],
    manifests: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, dict[int, tuple[tuple[bytes, bytes], ...]]], tuple[str, ...]]:
    """Returns the state of the messages' keys, and texts about missing state.

    The state maps store and partition to changelog entries.

    Args:
        messages: Topic -> partition -> messages.
        stores: The stores to read.
        manifests: The manifests of one checkpoint, one from each worker.

    Raises:
        HoldfastError: The checkpoint cannot be read.
    """
    # imported here, so that planning a deploy does not import RocksDB
    from holdfast.processors.engine.state.databases.checkpoint_reader import pairs_of_messages

    wanted: dict[int, set[bytes]] = {}
    for parts in messages.values():
        for number, found in parts.items():
            wanted.setdefault(number, set()).update(each.key for each in found if each.key is not None)
    held = {
        store: {
            part.partition: tuple(pairs_of_messages(Path(part.path), store, sorted(wanted[part.partition])))
            for part in store_partitions(manifests, store)
            if part.partition in wanted
        }
        for store in stores
    }
    return held, refusal.unowned({topic: tuple(parts) for topic, parts in messages.items()}, manifests)
