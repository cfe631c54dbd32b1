"""Compares column expressions with functions, and with Quix Streams: ``python -m tests.bench.columns``.

Each row runs the same messages both ways in turns, and compares a hash of the outputs. The time of a loop covers only
the processing of decoded values. The time of a task covers all its work between consumer and producer: JSON, the step,
state and outputs. The best of several turns counts, because other work on the machine only adds time. The time of a
loop without a step is subtracted before the ratio of a loop is computed. The run fails if a row with a ``goal`` is
below it.

Quix Streams runs the same declarations in an environment of its own, also in turns. Its results must have the same
hash. For the ratio to its time, nothing is subtracted. A function with state stands for an aggregation there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from holdfast import Count, Max, StreamingDataFrame, Sum, Topic
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.dataframe.generated_loop import compile_run
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.steps.outbox import Outbox, Outboxes
from tests.bench.asked import Asked, ask, quix_if_here
from tests.bench.column_steps import GOAL, LOOP, LOOPS, SLICE, Declare, Steps, large_by_columns, large_by_functions
from tests.bench.stream import FIRST_TIMESTAMP_MS, bodies

TURNS, MESSAGES, KEYS = 7, 50_000, 1_000


@dataclass(frozen=True, slots=True)
class Row:
    """The CPU nanoseconds per message of both ways, their ratio, and the hash of their equal results.

    ``quix_ratio`` is the time of an expression in Quix Streams relative to ours, both with their loops.
    """

    name: str
    columns_ns: float
    functions_ns: float
    ratio: float
    goal: float
    hash: str
    quix_columns_ns: float | None = None
    quix_functions_ns: float | None = None
    quix_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Quix:
    """The program of Quix Streams, and a file with the same messages: a key and a value on each line."""

    process: Asked
    file: Path

    def spent(self, steps: Steps, way: str, hashed: bool) -> tuple[float, str]:
        """The CPU nanoseconds per message, and the hash of the results if it is asked for."""
        answer = ask(self.process, do="columns", file=str(self.file), step=steps.name, way=way, hashed=hashed)
        return answer["ns"], answer.get("hash", "")


def _totals(sdf: Any) -> Any:
    return sdf.aggregate({"n": Count(), "total": Sum("total"), "most": Max("total")}, store="totals")


def _minutes(sdf: Any) -> Any:
    return sdf.tumbling_window(60_000, name="minutes").agg(n=Count(), total=Sum("total")).current("partition")


ALL: tuple[Steps, ...] = (
    *LOOPS,
    Steps(
        "task: filter, column, aggregation",
        lambda sdf: _totals(large_by_columns(sdf)),
        lambda sdf: _totals(large_by_functions(sdf)),
        task=True,
        goal=GOAL,
    ),
    Steps(
        "task: filter, column, window",
        lambda sdf: _minutes(large_by_columns(sdf)),
        lambda sdf: _minutes(large_by_functions(sdf)),
        task=True,
        goal=GOAL,
    ),
)


class Looped:
    """Runs only the loop that the engine generates from a stream's steps, on decoded values."""

    def __init__(self, declare: Declare, raw: Sequence[bytes], keys: Sequence[bytes], *, sends: bool = False) -> None:
        sdf, self.boxes = StreamingDataFrame(Topic("in")), Outboxes()
        made = declare(sdf)
        if sends:
            made.to_topic(Topic("out"))
        self._run, self._raw = compile_run(sdf.source, {}, self.boxes, {}).function, raw

    def spent_ns(self) -> int:
        """Return the CPU time of the loop in nanoseconds.

        The loop runs slice by slice like a task, so that values are in the CPU's caches.
        """
        decode, spent = msgspec.json.Decoder().decode, 0
        for first in range(0, len(self._raw), SLICE):
            part = [decode(each) for each in self._raw[first : first + SLICE]]
            count, values = len(part), iter(part)
            begun = time.thread_time_ns()
            self._run(values, repeat(b"k", count), repeat(1, count), repeat(b"k", count), repeat(None, count))
            spent += time.thread_time_ns() - begun
        return spent


class Tasked:
    """Runs all of a task's work with state in memory. Each call processes new messages."""

    def __init__(self, declare: Declare, raw: Sequence[bytes], keys: Sequence[bytes]) -> None:
        sdf = StreamingDataFrame(Topic("in"))
        declare(sdf).to_topic(Topic("out"))
        stores = tuple({node.store for node in sdf.source.walk() if node.store is not None})
        self._task = Task("t-0", "t", 0, ("in",))
        self._task.open(TaskStore(MemoryDatabases(lambda path, items: None), Path("unused")), stores)
        self._task.start({"in": sdf}, {}, {"in": 0})
        times = [FIRST_TIMESTAMP_MS + number for number in range(len(raw))]
        none: list[Any] = [None] * len(raw)
        self._batch = Batch(Partition("in", 0), [*keys], [*raw], times, [*range(len(raw))], none)
        self.boxes = self._task.outboxes

    def spent_ns(self) -> int:
        """The CPU time for all messages."""
        begun = time.thread_time_ns()
        for first in range(0, len(self._batch.offsets), SLICE):
            last = min(first + SLICE, len(self._batch.offsets))
            while self._task.positions["in"] < last:
                self._task.process(self._batch, first, last, _refuse)
        return time.thread_time_ns() - begun


def _refuse(failed: Any) -> None:
    raise failed.error


def measured(
    steps: Steps, raw: Sequence[bytes], keys: Sequence[bytes], turns: int, loop_ns: float, quix: Quix | None = None
) -> Row:
    """Measure the steps as columns and as functions in turns. ``loop_ns`` is subtracted from the times of a loop.

    Raises:
        AssertionError: The ways, or Quix Streams, have different results.
    """
    ways: dict[str, Callable[[bool], tuple[float, str]]] = {
        "columns": lambda hashed: _spent(steps, steps.columns, raw, keys, hashed),
        "functions": lambda hashed: _spent(steps, steps.functions, raw, keys, hashed),
    }
    if quix is not None:
        ways["quix columns"] = partial(quix.spent, steps, "columns")
        ways["quix functions"] = partial(quix.spent, steps, "functions")
    hashes, best = dict[str, str](), dict[str, float]()
    for turn in range(turns):
        for way, run in ways.items():
            spent, made = run(turn == 0)
            best[way] = min(spent, best.get(way, spent))
            hashes.setdefault(way, made)
    if len(set(hashes.values())) > 1:
        raise AssertionError(f"{steps.name}: other results: {hashes}")
    one, other = best["columns"], best["functions"]
    less = 0.0 if steps.task else loop_ns
    ratio = (other - less) / (one - less) if one > less else 1.0
    theirs = best.get("quix columns")
    beside = (theirs, best.get("quix functions"), theirs / one if theirs is not None else None)
    return Row(steps.name, one, other, ratio, steps.goal, hashes["columns"], *beside)


def _spent(
    steps: Steps, declare: Declare, raw: Sequence[bytes], keys: Sequence[bytes], hashed: bool
) -> tuple[float, str]:
    run: Any = Tasked(declare, raw, keys) if steps.task else Looped(declare, raw, keys)
    spent = run.spent_ns() / len(raw)
    if hashed and not steps.task:
        run = Looped(declare, raw, keys, sends=True)
        run.spent_ns()
    return spent, _hash(run.boxes["out"]) if hashed else ""


def written(file: Path, keys: Sequence[bytes], raw: Sequence[bytes]) -> Path:
    """Write the messages to the file that Quix Streams reads."""
    file.write_bytes(b"\n".join(key + b"\t" + body for key, body in zip(keys, raw, strict=True)))
    return file


def _hash(box: Outbox) -> str:
    digest = hashlib.sha256()
    for key, value in zip(box.keys, box.values, strict=True):
        digest.update((key or b"") + (value or b""))
    return digest.hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, or JSON. The exit code is 1 if a row is below its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without Quix Streams")
    given = parser.parse_args(arguments)
    made = [(key, body) for _, key, body in bodies(given.messages, KEYS)]
    keys, raw = [key for key, _ in made], [body for _, body in made]
    with TemporaryDirectory() as folder, quix_if_here(not given.alone) as process:
        file = Path(folder) / "messages"
        quix = None if process is None else Quix(process, written(file, keys, raw))
        loop = measured(LOOP, raw, keys, given.turns, 0.0, quix)
        rows = [measured(each, raw, keys, given.turns, loop.columns_ns, quix) for each in ALL]
    if given.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        _print([loop, *rows])
    return 0 if all(row.ratio >= row.goal for row in rows) else 1


def _print(rows: Sequence[Row]) -> None:
    print(
        f"| step | expression, ns | function, ns | ratio | goal ≥ {GOAL:.0f} | Quix expression | Quix function", end=""
    )
    print(" | Quix / ours | results |\n|---|--:|--:|--:|---|--:|--:|--:|---|")
    for row in rows:
        quix = (row.quix_columns_ns, row.quix_functions_ns)
        theirs = [*("-" if each is None else f"{each:.0f}" for each in quix)]
        theirs.append("-" if row.quix_ratio is None else f"{row.quix_ratio:.1f}")
        ratio = f"{row.ratio:.1f} | {'met' if row.ratio >= GOAL else 'not met'}" if row.name != LOOP.name else "- | -"
        ours = f"{row.columns_ns:.0f} | {row.functions_ns:.0f} | {ratio}"
        print(f"| {row.name} | {ours} | {' | '.join(theirs)} | `{row.hash}` |")


if __name__ == "__main__":
    sys.exit(main())
