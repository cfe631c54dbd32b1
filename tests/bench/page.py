"""Writes two Markdown pages: one of goals, contenders and conditions, and one of the engine's own scenarios.

python -m tests.bench.page raw.jsonl docs/benchmarks.md      from existing results; measures nothing

The second page, ``docs/benchmarks-engine.md``, is written beside the first one if the results have scenarios.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench import scenario, snapshots
from tests.bench.goals import judged
from tests.bench.report import against_ourselves, counts_of, hashes_of, rows_of
from tests.bench.results import Results

HOW = """\
Contenders take turns, each time in a process of its own, on one real broker that runs on the same machine. Rates come
from the broker's own times of append of the outputs; `warm` is the last 60 % of them, when a JVM has compiled what is
hot. CPU is in seconds per million messages, of the whole process with all its threads, its start included (`warm`: of
the warm part); `broker` is the broker's for them. `RSS MiB` is peak memory, `others` how many cores the rest of the
machine used meanwhile. Columns `f:` and `b:` are what ours does, with a plain function and with the built-in
aggregation, divided by what the row's contender does. The outputs of every run are read back: one for each message,
and final totals with the bits that plain Python computes, or the run does not count. Slow contenders get fewer messages
of the same stream where a table says so: rates are rates. Figures are medians unless they say best.
"""

#: For each scenario: text for readers of the page, in addition to the title of the scenario.
ABOUT = {
    snapshots.SCENARIO.name: """\
CPU is of the whole tree of processes (Python, the JVM, Python workers), without the broker. Rows are the keys of the
table, or the records of the changelog where it is read. `JVM MiB` is the peak of the driver until then. *To a typed
table* is from the source to an Iceberg table of the same six columns. The work differs: the state reader's store is
Spark's own RocksDB with the values in Spark's row format, so nothing is parsed. Ours are JSON of about 95 bytes, parsed
and checked against the model, and the changelog is folded, too. Parsing alone (`from_json` of six fields, measured
apart) takes 3 to 4 µs of CPU a row. That is as much as all that the reader does where it loads RocksDB's files as they
are. Where the reader has to replay changelog checkpoints, it does more. A full or an incremental snapshot includes
history, table, audit, manifest and tags. Until a JVM is warm, each snapshot costs less than the one before; this lasts
for twenty snapshots and more. `cold` is the first of all.

The audit of typed columns was measured apart, with and without it in turns in one JVM. The table has 100,000 keys of
six columns. Medians of five turns on a machine with much other work: an incremental snapshot of 2,000 changed keys
takes 3.9 s of CPU with the audit. Without it, it takes 4.5 s, because one scan now counts unreadable values and
computes what the audit expects. A full one takes 12.8 s and 10.8 s. The scans that differ, alone and warm, take 0.2 to
0.4 s more with the audit.
""",
}


AGAIN = "`make bench` measures again; `BENCH='--page docs/benchmarks.md'` writes this page.\n"
#: Ratios of other benches. Their tables are on other pages, each on the page about the measured feature.
ELSEWHERE = """\
Other pages have more ratios, each with its conditions.

| what | beside | ratio | again |
| --- | --- | ---: | --- |
| [rows of a table by group](joins-compared.md#cost) | Kafka Streams | 1.16x rate, 0.61x CPU | `--cases join-rows` |
| [joins, groups](joins-compared.md#cost) | both peers | 0.17x to 0.40x CPU | `--cases join-table,join-group` |
| [decoding](formats.md#cost) | JSON | 0.9x to 144x CPU | `python -m tests.bench.formats` |
| [decoding](formats.md#cost) | Quix Streams | 0.37x to 1.28x CPU | `python -m tests.bench.formats` |
| [state codecs](codecs.md#cost) | JSON | 0.4x to 8.2x CPU | `python -m tests.bench.codecs` |
| [columns](columns.md#how-fast) | functions, goal ≥ 2x | 1.2x to 4.4x: 3 not met | `python -m tests.bench.columns` |
| [columns](columns.md#how-fast) | Quix Streams | 3.8x to 12.2x rate | `python -m tests.bench.columns` |
"""


def write_pages(first: Path, results: Results, cores: int) -> None:
    """Write the page ``first``, and beside it the page of the engine's scenarios if there are results."""
    second = first.with_name(f"{first.stem}-engine{first.suffix}")
    first.write_text(page(results, cores, second.name))
    if results.figures:
        second.write_text(engine_page(results, first.name))


def page(results: Results, cores: int, second: str) -> str:
    """The page of goals, contenders and conditions; ``second`` is the file name of the other page."""
    parts = ["# Benchmarks\n", f"{HOW}\n{AGAIN}"]
    if results.figures:
        parts.append(f"The engine against itself is on [another page]({second}).\n")
    parts.append(ELSEWHERE)
    parts += ["## Goals\n", _goals(results, cores)]
    if results.wrong:
        parts += ["Runs that do not count:\n", "\n".join(f"- {told}" for told in results.wrong) + "\n"]
    parts.append("## Contenders in turns\n")
    for case, runs in results.runs.values():
        parts += [f"### {case.name}\n", f"{case.title[0].upper()}{case.title[1:]}: {counts_of(case, runs)}.\n"]
        parts.append(_table(rows_of(case, results.titles, runs)))
        if told := hashes_of(runs):
            parts.append(f"{told[0].upper()}{told[1:]}; the same in plain Python.\n")
    if ratios := against_ourselves(results.runs):
        first, *lines = ratios.splitlines()
        parts += [f"### {first}\n", "\n".join(f"- {line.strip()}" for line in lines) + "\n"]
    parts += ["## Conditions\n", f"```text\n{_conditions(results.conditions)}\n```\n"]
    return "\n".join(parts)


def engine_page(results: Results, first: str) -> str:
    """The page of the engine's scenarios; ``first`` is the file name of the page with the conditions."""
    parts = [
        "# Benchmarks: the engine against itself\n",
        f"Starts, failovers, checkpoints, audits and snapshots, without peers. [Benchmarks]({first}) says how it is\n"
        f"measured, and has the [conditions]({first}#conditions).\n",
        AGAIN,
    ]
    for name, (title, ways) in results.figures.items():
        columns, rows = scenario.rows_of(ways)
        parts += [f"## {name}\n", f"{title[0].upper()}{title[1:]}; medians.\n", _table([columns, *rows])]
        if name in ABOUT:
            parts.append(ABOUT[name])
    return "\n".join(parts)


def _conditions(told: Sequence[str]) -> str:
    """Return the conditions that all parts of the bench share, and then the conditions of each part."""
    parts = [lines.splitlines() for lines in told]
    shared = [line for line in (parts[0] if parts else []) if all(line in part for part in parts)]
    own = ["\n".join(line for line in part if line not in shared) for part in parts]
    return "\n\n".join(["\n".join(shared), *own]).strip()


def _goals(results: Results, cores: int) -> str:
    rows = [["", "goal", "measured", "beside", ""]]
    rows += [[goal.what, goal.wanted, goal.found, goal.beside, goal.verdict] for goal in judged(results, cores)]
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    rule = ["---", *(["---:"] * (len(head) - 1))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rest)) + "\n"


if __name__ == "__main__":
    write_pages(Path(sys.argv[2]), Results.kept_in(Path(sys.argv[1])), os.cpu_count() or 1)
