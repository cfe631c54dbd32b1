"""Compares column expressions with the same steps as functions: ``python -m tests.bench.columns``.

Each row runs the same messages both ways in turns, and compares a hash of the outputs. The time of a loop covers only
the processing of decoded values. The time of a task covers all its work between consumer and producer: JSON, the step,
state and outputs. The best of several turns counts, because other work on the machine only adds time. The time of a
loop without a step is subtracted before the ratio of a loop is computed. The run fails if a row with a ``goal`` is
below it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Count, Max, StreamingDataFrame, Sum, Topic
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.dataframe.generated_loop import compile_run
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.steps.outbox import Outbox, Outboxes
from tests.bench.stream import FIRST_TIMESTAMP_MS, bodies

TURNS, MESSAGES, KEYS = 7, 50_000, 1_000
#: The number of messages in one call of the loop.
SLICE = 500
#: The minimum speed of an expression relative to a function, as a goal of the bench.
GOAL = 2.0

Declare = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Steps:
    """The same steps as column expressions and as functions. ``goal``: the minimum speed relative to functions."""

    name: str
    columns: Declare
    functions: Declare
    #: Whether a whole task is measured (with an aggregation or a window after the steps), not only the loop.
    task: bool = False
    goal: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """The CPU nanoseconds per message of both ways, their ratio, and the hash of their equal results."""

    name: str
    columns_ns: float
    functions_ns: float
    ratio: float
    goal: float
    hash: str


def _assigned(sdf: Any, **columns: Callable[[Any], Any]) -> Any:
    for name, column in columns.items():
        sdf[name] = column(sdf)
    return sdf


def _set_total(value: Any) -> None:
    value["total"] = value["amount"] * 3


def _totals(sdf: Any) -> Any:
    return sdf.aggregate({"n": Count(), "total": Sum("total"), "most": Max("total")}, store="totals")


def _minutes(sdf: Any) -> Any:
    return sdf.tumbling_window(60_000, name="minutes").agg(n=Count(), total=Sum("total")).current("partition")


def _large_by_columns(sdf: Any) -> Any:
    sdf = sdf[(sdf["amount"] > 200) & sdf["currency"].isin(["EUR", "USD", "GBP"])]
    return _assigned(sdf, total=lambda s: s["amount"] * 3)


def _large_by_functions(sdf: Any) -> Any:
    return sdf.filter(lambda value: value["amount"] > 200 and value["currency"] in ["EUR", "USD", "GBP"]).apply(
        lambda value: {**value, "total": value["amount"] * 3}
    )


LOOP = Steps("the loop alone", lambda sdf: sdf, lambda sdf: sdf)
ALL: tuple[Steps, ...] = (
    Steps(
        "a column; `apply` of a new object",
        lambda sdf: _assigned(sdf, total=lambda s: s["amount"] * 3),
        lambda sdf: sdf.apply(lambda value: {**value, "total": value["amount"] * 3}),
        goal=GOAL,
    ),
    Steps(
        "filter, two columns, projection; four functions",
        lambda sdf: _assigned(
            sdf[sdf["amount"] > 200], total=lambda s: s["amount"] * 3, large=lambda s: s["total"] > 2_000
        )[["user_id", "total", "large"]],
        lambda sdf: (
            sdf.filter(lambda value: value["amount"] > 200)
            .apply(lambda value: {**value, "total": value["amount"] * 3})
            .apply(lambda value: {**value, "large": value["total"] > 2_000})
            .apply(lambda value: {name: value[name] for name in ("user_id", "total", "large")})
        ),
        goal=GOAL,
    ),
    Steps(
        "projection",
        lambda sdf: sdf[["user_id", "amount"]],
        lambda sdf: sdf.apply(lambda value: {"user_id": value["user_id"], "amount": value["amount"]}),
    ),
    Steps(
        "a column; `update` in place",
        lambda sdf: _assigned(sdf, total=lambda s: s["amount"] * 3),
        lambda sdf: sdf.update(_set_total),
    ),
    Steps(
        "filter",
        lambda sdf: sdf[(sdf["amount"] > 500) & (sdf["currency"] == "EUR")],
        lambda sdf: sdf.filter(lambda value: value["amount"] > 500 and value["currency"] == "EUR"),
    ),
    Steps(
        "task: filter, column, aggregation",
        lambda sdf: _totals(_large_by_columns(sdf)),
        lambda sdf: _totals(_large_by_functions(sdf)),
        task=True,
        goal=GOAL,
    ),
    Steps(
        "task: filter, column, window",
        lambda sdf: _minutes(_large_by_columns(sdf)),
        lambda sdf: _minutes(_large_by_functions(sdf)),
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


def measured(steps: Steps, raw: Sequence[bytes], keys: Sequence[bytes], turns: int, loop_ns: float) -> Row:
    """Measure the steps as columns and as functions in turns. ``loop_ns`` is subtracted from the times of a loop.

    Raises:
        AssertionError: The two ways have different results.
    """
    declares = {"columns": steps.columns, "functions": steps.functions}
    hashes, best = dict[str, str](), dict[str, float]()
    for turn in range(turns):
        for way, declare in declares.items():
            run: Any = Tasked(declare, raw, keys) if steps.task else Looped(declare, raw, keys)
            spent = run.spent_ns() / len(raw)
            best[way] = min(spent, best.get(way, spent))
            if turn == 0:
                if not steps.task:
                    run = Looped(declare, raw, keys, sends=True)
                    run.spent_ns()
                hashes[way] = _hash(run.boxes["out"])
    if len(set(hashes.values())) > 1:
        raise AssertionError(f"{steps.name}: other results: {hashes}")
    one, other = best["columns"], best["functions"]
    less = 0.0 if steps.task else loop_ns
    ratio = (other - less) / (one - less) if one > less else 1.0
    return Row(steps.name, one, other, ratio, steps.goal, hashes["columns"])


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
    given = parser.parse_args(arguments)
    made = [(key, body) for _, key, body in bodies(given.messages, KEYS)]
    keys, raw = [key for key, _ in made], [body for _, body in made]
    loop_ns = measured(LOOP, raw, keys, given.turns, 0.0).columns_ns
    rows = [measured(each, raw, keys, given.turns, loop_ns) for each in ALL]
    if given.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print(f"The loop without a step takes {loop_ns:.0f} ns for a message.\n")
        print("| step | expression, ns | function, ns | ratio | results |\n|---|--:|--:|--:|---|")
        for row in rows:
            print(f"| {row.name} | {row.columns_ns:.0f} | {row.functions_ns:.0f} | {row.ratio:.1f} | `{row.hash}` |")
    return 0 if all(row.ratio >= row.goal for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
