"""Expressions of columns against the same steps as functions: ``python -m tests.bench.columns``.

Each row runs the same messages through both, in turns, and compares a hash of what comes out. The time of the loop is
that of values which are there already; the whole time has JSON before and behind it, too. The best of several turns
counts, because other work on the machine only ever adds time.
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
from typing import Any

import msgspec

from holdfast import StreamingDataFrame, Topic
from holdfast.processors.engine.dataframe.generated_loop import compile_run
from holdfast.processors.engine.steps.outbox import Outboxes
from tests.bench.stream import bodies

TURNS, MESSAGES, KEYS = 7, 50_000, 1_000
#: Messages of one call of the loop.
SLICE = 500
#: What an expression is to be worth, compared with a function.
GOAL = 2.0

Declare = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Steps:
    """The same steps, as columns and as functions."""

    name: str
    columns: Declare
    functions: Declare


@dataclass(frozen=True, slots=True)
class Row:
    """Nanoseconds for each message, the ratios, and the hash that both have."""

    name: str
    columns_ns: float
    functions_ns: float
    ratio: float
    whole_columns_ns: float
    whole_functions_ns: float
    whole_ratio: float
    hash: str


def _assigned(sdf: Any, **columns: Callable[[Any], Any]) -> Any:
    for name, column in columns.items():
        sdf[name] = column(sdf)
    return sdf


def _set_total(value: Any) -> None:
    value["total"] = value["amount"] * 3


LOOP = Steps("the loop alone", lambda sdf: sdf, lambda sdf: sdf)
ALL: tuple[Steps, ...] = (
    Steps(
        "assign, as `apply` of a new object",
        lambda sdf: _assigned(sdf, total=lambda s: s["amount"] * 3),
        lambda sdf: sdf.apply(lambda value: {**value, "total": value["amount"] * 3}),
    ),
    Steps(
        "assign, as `update` in place",
        lambda sdf: _assigned(sdf, total=lambda s: s["amount"] * 3),
        lambda sdf: sdf.update(_set_total),
    ),
    Steps(
        "filter",
        lambda sdf: sdf[(sdf["amount"] > 500) & (sdf["currency"] == "EUR")],
        lambda sdf: sdf.filter(lambda value: value["amount"] > 500 and value["currency"] == "EUR"),
    ),
    Steps(
        "filter by a list",
        lambda sdf: sdf[sdf["currency"].isin(["EUR", "USD"])],
        lambda sdf: sdf.filter(lambda value: value["currency"] in ["EUR", "USD"]),
    ),
    Steps(
        "projection",
        lambda sdf: sdf[["user_id", "amount"]],
        lambda sdf: sdf.apply(lambda value: {"user_id": value["user_id"], "amount": value["amount"]}),
    ),
    Steps(
        "filter, two columns, projection",
        lambda sdf: _assigned(
            sdf[sdf["amount"] > 200], total=lambda s: s["amount"] * 3, large=lambda s: s["total"] > 2_000
        )[["user_id", "total", "large"]],
        lambda sdf: (
            sdf.filter(lambda value: value["amount"] > 200)
            .apply(lambda value: {**value, "total": value["amount"] * 3})
            .apply(lambda value: {**value, "large": value["total"] > 2_000})
            .apply(lambda value: {name: value[name] for name in ("user_id", "total", "large")})
        ),
    ),
)


def measured(steps: Steps, raw: Sequence[bytes], turns: int) -> Row:
    """Both ways of the steps, in turns.

    Raises:
        AssertionError: They have other results.
    """
    declares = {"columns": steps.columns, "functions": steps.functions}
    hashes = {way: _hash(declare, raw) for way, declare in declares.items()}
    if len(set(hashes.values())) > 1:
        raise AssertionError(f"{steps.name}: other results: {hashes}")
    best: dict[tuple[str, bool], float] = {}
    for _ in range(turns):
        for way, declare in declares.items():
            for whole in (False, True):
                spent = _spent_ns(declare, raw, whole=whole) / len(raw)
                best[way, whole] = min(spent, best.get((way, whole), spent))
    one, other = best["columns", False], best["functions", False]
    whole_one, whole_other = best["columns", True], best["functions", True]
    return Row(steps.name, one, other, other / one, whole_one, whole_other, whole_other / whole_one, hashes["columns"])


def _hash(declare: Declare, raw: Sequence[bytes]) -> str:
    run, boxes = _compiled(declare, whole=True)
    _run(run, map(msgspec.json.decode, raw), len(raw))
    digest = hashlib.sha256()
    for value in boxes["out"].values:
        digest.update(value or b"")
    return digest.hexdigest()[:16]


def _compiled(declare: Declare, *, whole: bool) -> tuple[Any, Outboxes]:
    sdf, boxes = StreamingDataFrame(Topic("in")), Outboxes()
    made = declare(sdf)
    if whole:
        made.to_topic(Topic("out"))
    return compile_run(sdf.source, {}, boxes, {}).function, boxes


def _run(run: Any, values: Any, count: int) -> None:
    run(values, repeat(b"k", count), repeat(1, count), repeat(b"k", count), repeat(None, count))


def _spent_ns(declare: Declare, raw: Sequence[bytes], *, whole: bool) -> int:
    """The CPU time of the loop alone, slice by slice as a task runs it: values are in the caches of the CPU."""
    run, boxes = _compiled(declare, whole=whole)
    decode, spent = msgspec.json.Decoder().decode, 0
    for first in range(0, len(raw), SLICE):
        part = raw[first : first + SLICE]
        values: Any = map(decode, part) if whole else iter([decode(each) for each in part])
        begun = time.thread_time_ns()
        _run(run, values, len(part))
        spent += time.thread_time_ns() - begun
        for box in boxes.values():
            box.clear()
    return spent


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table, or JSON; the exit code is 1 if an expression is worth less than the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    raw = [body for _, _, body in bodies(given.messages, KEYS)]
    rows = [measured(each, raw, given.turns) for each in (LOOP, *ALL)]
    if given.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print("| step | column, ns | function, ns | ratio | whole, ns | whole, ns | ratio | results |")
        print("|---|--:|--:|--:|--:|--:|--:|---|")
        for row in rows:
            print(
                f"| {row.name} | {row.columns_ns:.0f} | {row.functions_ns:.0f} | {row.ratio:.1f} | "
                f"{row.whole_columns_ns:.0f} | {row.whole_functions_ns:.0f} | {row.whole_ratio:.2f} | `{row.hash}` |"
            )
    return 0 if all(row.ratio >= GOAL for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
