"""Sends commands about state to its owners, the workers, over HTTP (implements ``execution.Owners``).

Invariants:
    - A command to a worker names only partitions of tasks that this worker owns now. Tasks are compared by subtopology
      and partition, because partition 3 of two subtopologies can have different owners.
    - If a requested task has no owner, an error is raised before any state is changed. A change first waits until each
      task has an owner, because a worker that was just started causes a rebalance.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Partition
from holdfast.infra.waiting import retry
from holdfast.processors.engine.runtime.owner_commands.commands import CommandRefused
from holdfast.processors.engine.serving.worker_client import ProcessorClient, ProcessorSilent
from holdfast.processors.lifecycle.plans.apply import ProgressLog
from holdfast.processors.lifecycle.plans.facts.facts import Counted
from holdfast.processors.lifecycle.plans.requests import Keys, Prefix, Selection, Windows
from holdfast.processors.lifecycle.plans.stages import ClearKeys, CompactStores, ReadAgain
from holdfast.processors.lifecycle.world.joined_exports import joined

Answer = TypeVar("Answer")

#: Maximum seconds that a change waits until each requested task belongs to a worker.
OWNED_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.5


class NobodyOwns(HoldfastError):
    """No running worker owns a requested partition. Fields: ``processor``, ``partitions``."""


@dataclass(frozen=True, slots=True)
class Place:
    """A partition whose entries were read: the slot of its owner (worker), and the next input offset of each topic."""

    partition: int
    slot: str
    inputs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Found:
    """Entries that were read from a store, in the format of export files, each with its ``slot``.

    Args:
        more: Whether the selection has further entries.
        places: The partitions that were read.
        where: The source of the entries, as text.
    """

    rows: tuple[dict[str, Any], ...]
    more: bool
    places: tuple[Place, ...]
    where: str


def is_complete(places: Sequence[Place], committed: Mapping[Partition, int]) -> bool:
    """Whether these partitions were read up to all input that the group has committed."""
    return all(
        committed.get(Partition(topic, place.partition), at) == at
        for place in places
        for topic, at in place.inputs.items()
    )


class RunningOwners:
    """Sends commands to running owners (workers that own state); implements ``execution.Owners``.

    Args:
        client: Function of processor and slot that returns the client of the worker in that slot.
        slots: Function of a processor that returns its slots (places of workers).
        tasks: Function of processor and stores that returns the tasks with these stores, as (subtopology, partition). A
            command without partitions needs owners of all these tasks.
        once: Function that returns the name of the present stage. If another run repeats the stage, the name is the
            same. Tasks remember the name of a clear, so a repeated clear deletes nothing.
        owned_within_s: Maximum seconds that a change waits for owners of all requested tasks.
        exports: Function of a processor that returns the folder in which the export files of an apply are joined. None
            leaves the files as the workers wrote them.
    """

    def __init__(
        self,
        client: Callable[[str, str], ProcessorClient],
        slots: Callable[[str], tuple[str, ...]],
        tasks: Callable[[str, Sequence[str]], Set[tuple[str, int]]],
        once: Callable[[], str] = lambda: "",
        owned_within_s: float = OWNED_WITHIN_S,
        *,
        exports: Callable[[str], Path] | None = None,
    ) -> None:
        self._client = client
        self._slots = slots
        self._tasks = tasks
        self._once = once
        self._owned_within_s = owned_within_s
        self._exports = exports

    def count(self, processor: str, store: str, selection: Selection, partitions: tuple[int, ...]) -> Counted | None:
        """Keys and bytes of a selection, counted by the workers; None unless a worker answers for each partition."""
        keys = size = 0
        try:
            for client, owned in self._owners(processor, (store,), partitions):
                answer = client.count(store, partitions=owned, **_named(selection))
                keys, size = keys + int(answer["keys"]), size + int(answer["bytes"])
        except (NobodyOwns, ProcessorSilent, CommandRefused):
            return None
        return Counted(keys, size, "the running workers")

    def read(self, processor: str, store: str, selection: Selection, limit: int) -> Found:
        """At most ``limit`` committed entries of a selection, read by the running owners.

        Raises:
            NobodyOwns, ProcessorSilent, CommandRefused: At present no worker answers for a partition.
        """
        rows: list[dict[str, Any]] = []
        places: list[Place] = []
        more = False
        for client, owned in self._owners(processor, (store,), ()):
            answer = client.read(store, limit, partitions=owned, **_named(selection))
            rows += [{**row, "slot": client.slot} for row in answer["rows"]]
            more = more or bool(answer["more"])
            places += [Place(int(number), client.slot, at) for number, at in answer["positions"].items()]
        return Found(tuple(rows[:limit]), more or len(rows) > limit, tuple(places), "the running workers")

    def clear(self, processor: str, stage: ClearKeys, tell: ProgressLog) -> tuple[int, tuple[str, ...]]:
        keys, paths = 0, list[str]()
        for client, owned in self._awaited(lambda: self._owners(processor, stage.stores, stage.partitions)):
            tell(f"slot {client.slot} {'writes the keys to a file, and ' * stage.export}deletes the keys")
            positions = {
                topic: {number: at for number, at in each.items() if number in owned}
                for topic, each in stage.positions.items()
            }
            named = _named(stage.selection)
            named |= {"partitions": owned, "positions": positions or None, "once": self._once() or None}
            named |= {"export": stage.export}
            answer = client.clear(stage.stores, **named)
            keys += int(answer["keys"])
            paths += [*answer.get("before", ()), *(str(file["path"]) for file in answer.get("files", ()))]
        step = self._once()
        if stage.export and step and self._exports is not None:
            return keys, joined(paths, self._exports(processor), step)
        return keys, tuple(paths)

    def delete_key(self, processor: str, stores: Sequence[str], key: str) -> tuple[int, dict[str, dict[int, int]]]:
        """Delete the entries of a message key; returns their number, and the changelog offsets after the deletes.

        Each call deletes, also one that repeats a stage. The offsets are by store and partition. Later records of the
        key are of later messages. A key without entries still gives a commit in each task.
        """
        entries, ends = 0, dict[str, dict[int, int]]()
        for client, owned in self._awaited(lambda: self._owners(processor, stores, ())):
            answer = client.clear(stores, partitions=owned, keys=(key,), once=f"erase/{uuid.uuid4().hex}")
            entries += int(answer["entries"])
            for store, each in answer["ends"].items():
                ends.setdefault(store, {}).update({int(number): int(end) for number, end in each.items()})
        return entries, ends

    def count_key(self, processor: str, store: str, key: str) -> int | None:
        """The number of entries of a message key in a store; None unless a worker answers for each partition."""
        entries = 0
        try:
            for client, owned in self._owners(processor, (store,), ()):
                entries += int(client.count(store, partitions=owned, keys=(key,))["entries"])
        except (NobodyOwns, ProcessorSilent, CommandRefused):
            return None
        return entries

    def read_again(self, processor: str, stage: ReadAgain, tell: ProgressLog) -> None:
        left = {(topic, number) for topic, each in stage.positions.items() for number in each}
        self._awaited(lambda: self._ask_again(processor, stage, left, tell))

    def _ask_again(self, processor: str, stage: ReadAgain, left: set[tuple[str, int]], tell: ProgressLog) -> None:
        """Send the stage's input offsets to the workers that own partitions in ``left``; removes these partitions."""
        for slot in self._slots(processor):
            client = self._client(processor, slot)
            status = client.status()
            owned = (
                set() if status is None else {(topic, each.partition) for each in status.tasks for topic in each.inputs}
            )
            if asked := left & owned:
                tell(f"slot {slot} goes back in its inputs")
                positions: dict[str, dict[int, int]] = {}
                for topic, number in sorted(asked):
                    positions.setdefault(topic, {})[number] = stage.positions[topic][number]
                client.position(positions)
            left.difference_update(owned)
        if left:
            listed = ", ".join(f"{topic}[{number}]" for topic, number in sorted(left))
            raise NobodyOwns(
                f"No running worker of {processor} owns {listed}.",
                action="Wait until `holdfast status` shows all partitions assigned, then retry.",
                processor=processor,
                partitions=listed,
            )

    def compact(self, processor: str, stage: CompactStores, tell: ProgressLog) -> tuple[int, int]:
        before = after = 0
        for slot in stage.slots or self._slots(processor):
            tell(f"slot {slot} rewrites its stores")
            answer = self._client(processor, slot).compact()
            before, after = before + int(answer["bytes_before"]), after + int(answer["bytes_after"])
        return before, after

    def _awaited(self, ask: Callable[[], Answer]) -> Answer:
        """Repeats ``ask`` until each requested task belongs to a worker; returns the result of ``ask``."""
        return retry(ask, lambda failure: isinstance(failure, NobodyOwns), self._owned_within_s, every_s=_LOOK_EVERY_S)

    def _owners(
        self, processor: str, stores: Sequence[str], partitions: tuple[int, ...]
    ) -> list[tuple[ProcessorClient, tuple[int, ...]]]:
        """The workers that own the requested partitions, each with the requested partitions that it owns.

        A worker that does not answer, for example because it is frozen, is left out if others own all of these: then
        the group has moved its tasks.
        """
        found: list[tuple[ProcessorClient, tuple[int, ...]]] = []
        wanted = {task for task in self._tasks(processor, stores) if not partitions or task[1] in partitions}
        missing, silent = set(wanted), list[str]()
        for slot in self._slots(processor):
            client = self._client(processor, slot)
            status = client.status()
            if status is None:
                silent.append(slot)
                continue
            owned = {(task.subtopology, task.partition) for task in status.tasks} & wanted
            missing -= owned
            if owned:
                found.append((client, tuple(sorted(number for _, number in owned))))
        if silent and (missing or not found):
            raise ProcessorSilent(
                f"Processor {processor} (slot {silent[0]}) does not answer.",
                action=f"Read `holdfast status` and `holdfast logs {processor}`, then retry.",
                processor=processor,
                slot=silent[0],
            )
        if missing or not (found or partitions):
            listed = ", ".join(str(number) for _, number in sorted(missing)) or "none is owned"
            raise NobodyOwns(
                f"No running worker of {processor} owns partition {listed} of {', '.join(stores)}.",
                action="Wait until `holdfast status` shows all partitions assigned, then retry.",
                processor=processor,
                partitions=listed,
            )
        return found


def _named(selection: Selection) -> dict[str, Any]:
    match selection:
        case Keys(keys=keys):
            return {"keys": keys}
        case Prefix(prefix=prefix):
            return {"prefix": prefix}
        case Windows(start_ms=start, end_ms=end, of=of):
            return {**_named(of), "window": (start, end)}
        case _:
            return {"all": True}
