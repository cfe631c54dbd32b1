"""Bugs that tests plant at the engine's borders: outputs, old timestamps, equal slot names, clears, missing markers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast.infra.kafka.records import Partition
from holdfast.processors.application import worker_start
from holdfast.processors.engine.commands import keys
from holdfast.processors.engine.commands.sweep import Sweep
from holdfast.processors.engine.formats import serialization
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime.committer import Committer
from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.engine.runtime.owner_commands.tickets import Work
from holdfast.processors.engine.runtime.ownership import assignment
from holdfast.processors.engine.runtime.ownership.assignment import Assignment
from holdfast.processors.lifecycle.verbs.releases import compatibility
from holdfast.processors.testing.cluster import InMemoryTransactions
from holdfast.processors.testing.producer import InMemoryProducer

#: With the planted bug ``few_rewound``, only this many tasks read their input again after an abort.
FIRST_TASKS = 3


def host_is_identity(patch: pytest.MonkeyPatch) -> None:
    """The bug: two state folders with the same slot (name of a worker's place) get the same transactional id."""
    patch.setattr(worker_start, "transactional_id", lambda group, folder, slot: f"{group}-{slot}")


def serialized_as_it_is(patch: pytest.MonkeyPatch) -> None:
    """The bug: the result of a serializer is not checked."""
    patch.setattr(serialization, "_only_bytes", lambda serialize: serialize)


def past_unchecked(patch: pytest.MonkeyPatch) -> None:
    """The bug: only timestamps in the future are compared with the topic's limits, not those of the distant past."""
    bounds = RecordTimes.bounds
    patch.setattr(RecordTimes, "bounds", lambda self, topic: (float("-inf"), bounds(self, topic)[1]))


def dead_letters_keep_their_time(patch: pytest.MonkeyPatch) -> None:
    """The bug: a dead letter keeps a timestamp that its topic refuses."""
    patch.setattr(RecordTimes, "taken", lambda self, topic, time_ms: time_ms)


def parted_inputs_taken(patch: pytest.MonkeyPatch) -> None:
    """The bug: a worker processes only one of two inputs that feed the same store."""
    patch.setattr(assignment, "check_together", lambda *_: None)


def positions_stay(patch: pytest.MonkeyPatch) -> None:
    """The bug: a clear deletes all state, but does not set the committed input offsets back."""
    clear = keys.clear

    def clears(worker: Any, ticket: Any, tasks: Any, asked: Any, selection: Any, moves: Any) -> Work:
        return clear(worker, ticket, tasks, asked, selection, {})

    patch.setattr(keys, "clear", clears)


def half_cleared(patch: pytest.MonkeyPatch) -> None:
    """The bug: a clear (deletion of all keys) skips every second key."""
    batch = Sweep.batch

    def batches(self: Sweep) -> Mapping[str, Any]:
        return {store: entries[::2] for store, entries in batch(self).items()}

    patch.setattr(Sweep, "batch", batches)


def lost_with_their_topic(patch: pytest.MonkeyPatch) -> None:
    """The bug: records for a deleted topic are counted as sent."""
    arrives = InMemoryProducer._arrives

    def arrive(self: InMemoryProducer, queued: Any) -> bool:
        return queued.partition.topic not in self._broker.topics or arrives(self, queued)

    patch.setattr(InMemoryProducer, "_arrives", arrive)


def lost_markers_unseen(patch: pytest.MonkeyPatch) -> None:
    """The bug: no check looks for transactions that Kafka left open."""
    patch.setattr(Committer, "_settle", lambda self, producer, timeout_s=None: None)


def aborts_published(patch: pytest.MonkeyPatch) -> None:
    """The bug: an aborted transaction that Kafka left open is committed."""
    end = InMemoryTransactions.end

    def ends(self: InMemoryTransactions, place: Partition, producer_id: int, *, commit: bool) -> None:
        end(self, place, producer_id, commit=True)

    patch.setattr(InMemoryTransactions, "end", ends)


def few_rewound(patch: pytest.MonkeyPatch) -> None:
    """The bug: after an abort, only the first tasks read their input again."""
    rewind = Worker._rewind

    def rewinds(self: Worker) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Assignment, "tasks", property(lambda self: list(self._tasks.values())[:FIRST_TASKS]))
            rewind(self)

    patch.setattr(Worker, "_rewind", rewinds)


def regrouped_in_turns(patch: pytest.MonkeyPatch) -> None:
    """The bug: two versions run at the same time although they assign the inputs to different tasks."""
    of_changelog = compatibility._of_changelog

    def verdict(was: Any, now: Any) -> Any:
        found = of_changelog(was, now)
        return replace(found, change="same") if found.change == "regrouped" else found

    patch.setattr(compatibility, "_of_changelog", verdict)


def dropped_state_kept(patch: pytest.MonkeyPatch) -> None:
    """The bug: a store that a deployment dropped is restored from an old local copy."""
    patch.setattr(assignment, "without_emptied", lambda meta, stores, changelogs: meta)


PLANTS: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a worker's identity is the name of its slot": host_is_identity,
    "what a serializer returns goes to the client": serialized_as_it_is,
    "times long past are sent to a topic that refuses them": past_unchecked,
    "a dead letter has a time that its topic refuses": dead_letters_keep_their_time,
    "inputs of one store are parted between members": parted_inputs_taken,
    "a clear with a rewind leaves the offsets": positions_stay,
    "a clear deletes every second key": half_cleared,
    "outputs to a deleted topic count as sent": lost_with_their_topic,
    "markers that Kafka left out are not looked for": lost_markers_unseen,
    "an aborted transaction that was left open is committed": aborts_published,
    "an abort rewinds the first tasks only": few_rewound,
    "two versions with other tasks run beside each other": regrouped_in_turns,
    "an old copy speaks for a store that was dropped": dropped_state_kept,
}
