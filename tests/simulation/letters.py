"""Dead letters in the simulation. Reads them from the log in memory, and checks that none is lost or sent twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from holdfast.infra.kafka.records import Partition, Record
from holdfast.processors.lifecycle.plans.facts.dead_letters import replay_group
from holdfast.processors.lifecycle.world import changelog_meta
from holdfast.processors.lifecycle.world import dead_letters as letters
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import DEAD, GROUP, INPUT, expect

if TYPE_CHECKING:
    from tests.simulation.lifecycle_world import LifecycleWorld


@contextmanager
def records_in_memory(world: LifecycleWorld) -> Iterator[None]:
    """While the block runs, production code reads dead letters and meta records from the simulated log."""

    def read(topics: Any, place: Partition, start: int, end: int) -> Iterator[Record]:
        for number, record in world.cluster.read(place.topic):
            if number == place.number and start <= record.offset < end:
                yield record

    def read_range(bootstrap: str, topic: str, number: int, start: int, end: int, **client: Any) -> Iterator[Record]:
        return read(None, Partition(topic, number), start, end)

    with patch.object(letters, "_read", read), patch.object(changelog_meta, "read_range", read_range):
        yield


def check_letters(world: LifecycleWorld) -> None:
    """Check that each failed message has one dead letter, even if replays sent it several times.

    Call it only if no verb (operator command) has set the input back.

    Raises:
        InvariantBroken: A dead letter is lost, or exists twice.
    """
    cluster = world.cluster
    if not world.workload.dead_letters or DEAD not in cluster._broker.topics:
        return
    committed = cluster.committed_offsets(GROUP)
    if any(committed.get(Partition(INPUT, number), 0) < end for number, end in _ends(world).items()):
        return  # dead letters that were replayed to the input are not all processed yet
    done = cluster.committed_offsets(replay_group(GROUP))
    counts: Counter[tuple[int, int]] = Counter()
    for number, record in cluster.read(DEAD):
        if record.offset >= done.get(Partition(DEAD, number), 0):
            value = json.loads(record.value or b"{}")
            counts[value["p"], value["n"]] += 1
    sent = world.sent
    wanted = Counter((place, number) for place, number in expect(world.workload).dead if number < sent[place])
    if counts != wanted:
        raise InvariantBroken("letters", f"lost: {dict(wanted - counts)}; twice: {dict(counts - wanted)}")


def _ends(world: LifecycleWorld) -> dict[int, int]:
    """The end of each input partition. Transaction markers at the end are not counted."""
    ends: dict[int, int] = {}
    for number, record in world.cluster.read(INPUT):
        ends[number] = max(ends.get(number, 0), record.offset + 1)
    return ends
