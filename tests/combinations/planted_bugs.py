"""Bugs that tests plant in the engine, or in the cluster below it. The combination tests must detect each of them.

``FORMER`` are bugs that the engine had when these tests were written. ``MORE`` are additional bugs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.kafka.clients.read_ends import ReadEnds
from holdfast.processors.engine.dataframe import generated_loop as fusion
from holdfast.processors.engine.dataframe import plain_loop as compilation
from holdfast.processors.engine.runtime import commit, loop
from holdfast.processors.engine.runtime.reading import reading_order
from holdfast.processors.engine.runtime.reading.watermark_writer import WatermarkWriter
from holdfast.processors.engine.runtime.task import task
from holdfast.processors.engine.runtime.task.inputs_in_order import InputsInOrder
from holdfast.processors.engine.runtime.task.task_timers import TaskTimers
from holdfast.processors.engine.state.databases.memory import MemoryDatabase
from holdfast.processors.engine.state.time.expiries import Expiries
from holdfast.processors.engine.state.time.stream_time import StreamTime
from holdfast.processors.engine.windows.by_columns import ColumnarWindows
from tests.combinations.run import Outcome, quiet, run_seed
from tests.simulation import planted, planted_groups, planted_time
from tests.simulation.planted import Patch, Planted

#: The file with a seed for each bug; the seed fails with the bug and passes without it.
KNOWN_SEEDS = Path(__file__).with_name("known_seeds.txt")

Plants = dict[str, Patch]


# -- bugs that the engine had -----------------------------------------------------------------------------------------


def _cut_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    def all_of_them(records: Iterable[Any], of: Any) -> Iterator[Any]:
        yield from records

    patch.setattr(loop, "in_turn", all_of_them)
    patch.setattr(task, "in_turn", all_of_them)


def _old_end_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReadEnds, "begin", lambda self, partitions: None)


class _WorkersClock:
    """A stream time with a planted bug: it may reach the worker's clock, although watermarks limit it."""

    def __init__(self, stream: Any) -> None:
        self._of = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, "cap_ms" if name == "reach_ms" else name)

    def advance(self, time_ms: int) -> None:
        self._of.time_ms = max(self._of.time_ms, time_ms)


def _columns_take_the_clock(patch: pytest.MonkeyPatch) -> None:
    former = ColumnarWindows.__init__

    def made(self: Any, *given: Any, **named: Any) -> None:
        former(self, *given, **named)
        self._stream = _WorkersClock(self._stream)

    patch.setattr(ColumnarWindows, "__init__", made)


def _shared_in_place(patch: pytest.MonkeyPatch) -> None:
    for module in (fusion, compilation):
        patch.setattr(module, "copied", lambda value: value)
        patch.setattr(module, "apart", lambda items: items)


def _waits_for_itself(patch: pytest.MonkeyPatch) -> None:
    former = task.watermark_writers_of

    def one(name: str, frames: Any, *rest: Any) -> tuple[Any, ...]:
        made = former(name, frames, *rest)
        if not made or not any(frame.topic.repartitions for frame in frames):
            return made
        topics = {topic: of for each in made for topic, of in each.topics.items()}
        return (type(made[0])(name, topics, frozenset(frame.topic.name for frame in frames), hears=True),)

    patch.setattr(task, "watermark_writers_of", one)


FORMER: Plants = {
    "records behind a run that was cut are taken": _cut_is_passed_over,
    "an end from before a pause counts": _old_end_counts,
    "branches and matches share what a function changes in place": _shared_in_place,
    "a task that reads its own grouping waits for itself": _waits_for_itself,
    "the last word of a dead worker counts as its end": planted_groups._any_end_counts,
    "columns take the worker's clock beside a repartition topic": _columns_take_the_clock,
}


# -- additional bugs --------------------------------------------------------------------------------------------------


def _equal_times_woven_otherwise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading_order, "bisect_left", reading_order.bisect_right)


def _generated_without_branch(patch: pytest.MonkeyPatch) -> None:
    former = fusion._Writer._children

    def some(self: Any, node: Any, *rest: Any) -> None:
        kept = node.children
        node.children = kept[:-1] if len(kept) > 3 else kept
        try:
            former(self, node, *rest)
        finally:
            node.children = kept

    patch.setattr(fusion._Writer, "_children", some)


def _ends_in_state_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Expiries, "are_over", lambda self, key: False)


def _range_without_its_first(patch: pytest.MonkeyPatch) -> None:
    former = MemoryDatabase.items

    def items(self: MemoryDatabase, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from list(former(self, first))[1:]

    patch.setattr(MemoryDatabase, "items", items)


def _timers_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskTimers, "stop_messages", lambda self: False)


def _untimed_ask_for_no_end(patch: pytest.MonkeyPatch) -> None:
    former = InputsInOrder._mark_for_order

    def mark(self: InputsInOrder, of: Any, order: Any, member: Any) -> None:
        if of.time is not None:
            former(self, of, order, member)

    patch.setattr(InputsInOrder, "_mark_for_order", mark)


def _nothing_is_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit, "note_of", lambda of: "")


def _hears_itself(patch: pytest.MonkeyPatch) -> None:
    former = task.watermark_writers_of

    def made(name: str, frames: Any, *rest: Any) -> tuple[Any, ...]:
        every = frozenset(frame.topic.name for frame in frames)
        return tuple(
            type(each)(name, each.topics, every, hears=True) if each.own else each
            for each in former(name, frames, *rest)
        )

    patch.setattr(task, "watermark_writers_of", made)


def _late_by_now(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamTime, "ends_ms", property(lambda self: self.time_ms))


def _told_when_it_went_back(patch: pytest.MonkeyPatch) -> None:
    def is_due(self: WatermarkWriter, time_ms: int, now: float) -> bool:
        if self._told is None or self._ended_at is not None:
            return True
        if self._told.stretch and self._quiet is not None and self._told.stretch == self._stretch:
            return False
        return self._told.time_ms != time_ms or self._told.stretch != 0

    patch.setattr(WatermarkWriter, "_is_due", is_due)


MORE: Plants = {
    "an input that is not read to its end is not waited for": planted_groups._not_waited_for,
    "woven records of equal times have another order": _equal_times_woven_otherwise,
    "a generated loop leaves out a branch": _generated_without_branch,
    "a value is read until it leaves its store": _ends_in_state_only,
    "a range of state in memory leaves out its first value": _range_without_its_first,
    "a join with a history finds the newest row": planted_groups._row_too_new,
    "the overlay survives an abort": planted._overlay_survives_abort,
    "timers fire behind the messages of a run": _timers_late,
    "windows that one commit leaves wait for the next message": planted_time._left_windows_wait,
    "messages to a repartition topic are sent outside of the transaction": planted_groups._sent_at_once,
    "a task without stream time asks for no end of its groupings": _untimed_ask_for_no_end,
    "the heir of a task without a store knows no time": _nothing_is_noted,
    "a task that groups again what it has grouped waits for itself": _hears_itself,
    "rows of timers are late by time that passed meanwhile": _late_by_now,
    "a task answers its own watermark with another one": _told_when_it_went_back,
}
BUGS = [Planted(name, plant) for name, plant in {**FORMER, **MORE}.items()]


def known_seeds() -> dict[str, int]:
    """For each bug, the seed that is known to detect it."""
    lines = KNOWN_SEEDS.read_text(encoding="utf-8").splitlines() if KNOWN_SEEDS.exists() else []
    return {name: int(seed) for seed, _, name in (line.partition(" ") for line in lines) if name}


def caught(bug: Planted, seeds: Sequence[int], folder: Path) -> Outcome | None:
    """The failure of the first of these seeds that detects a bug; None if none does."""
    with bug.growing():
        for seed in seeds:
            outcome = run_seed(seed, folder)
            if outcome.kind:
                return outcome
    return None


def first_that_catches(bug: Planted, folder: Path, seeds_max: int) -> Outcome | None:
    """The failure of the first seed that fails with a bug and passes without it; None if there is none."""
    holds: Callable[[int], bool] = lambda seed: not run_seed(seed, folder).kind  # noqa: E731
    for seed in range(seeds_max):
        outcome = caught(bug, [seed], folder)
        if outcome is not None and holds(seed):
            return outcome
    return None


def main() -> None:
    """Finds a seed for each bug, and writes the file of known seeds."""
    known = known_seeds()
    with quiet() as folder:
        for bug in BUGS:
            outcome = first_that_catches(bug, folder, 2_000)
            if outcome is None:
                print(f"| {bug.name} | **nothing** | |", flush=True)
            else:
                print(f"| {bug.name} | {outcome.kind} | {outcome.seed} |", flush=True)
                known[bug.name] = outcome.seed
            KNOWN_SEEDS.write_text(
                "".join(f"{seed} {name}\n" for name, seed in sorted(known.items())), encoding="utf-8"
            )


if __name__ == "__main__":
    main()
