"""The first two parts of `holdfast status`: the table of workers, and the list of subjects that are not green.

A subject is a service, a processor or an asset; each has a reason and a next action.

Invariants:
    - No two rows of a processor are equal, because a row has the worker's slot (place), code version and partitions.
    - Subjects that become green without an action share one line. This line comes after all subjects that need an
      action.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.orchestration.commands.tables import print_table
from holdfast.orchestration.view.reasons import Reason, grouped

#: Maximum number of subjects (services, processors, assets) that are printed with one reason. The JSON document has
#: all.
_SUBJECTS = 3


def print_workers(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print one row for each slot (place of a worker) of each processor.

    A column that is empty in all rows is left out.
    """
    if not rows:
        return
    columns = ["processor", "slot", "version", "partitions"]
    columns += ["desired"] if any(each["desired"] not in ("-", "deployed") for each in rows) else []
    columns += ["state", "phase", "lag, records"]
    columns += ["stream time"] if any(each["stream_time"] is not None for each in rows) else []
    columns += ["timers"] if any(each["timers"] is not None for each in rows) else []
    columns += ["processed", "pid"]
    table = Table(*columns)
    for each in rows:
        cells = _cells(each)
        table.add_row(*(cells[name] for name in columns))
    print_table(table, console)


def _cells(row: dict[str, Any]) -> dict[str, str]:
    """Column -> cell, for the row of one slot (place of a worker). Cells have rich's markup; ``-`` means unknown."""
    # PAUSED is printed beside the state, because a paused processor has the state healthy although it reads no input.
    paused = " [red]PAUSED[/]" if row["paused"] else ""
    state = "down" if (row["desired"], row["diagnosis"]) == ("stopped", "not-deployed") else row["diagnosis"]
    time = row["stream_time"]
    plain = {
        "processor": row["processor"],
        "slot": row["slot"],
        "version": row["code_version"] or row["deployed_version"],
        "partitions": partitions_in_words(row),
        "desired": row["desired"],
        "phase": row["phase"],
        "lag, records": row["lag"],
        "stream time": None if time is None else moment(time),
        "timers": timers_in_words(row["timers"]),
        "processed": row["processed"],
        "pid": row["pid"],
    }
    shown = {name: "-" if cell is None else escape(str(cell)) for name, cell in plain.items()}
    return {**shown, "state": escape(state) + paused}


def partitions_in_words(row: dict[str, Any]) -> str | None:
    """The partitions of a worker, as ``0-2, 5``; ``none`` if it has no partition; None if it does not answer.

    If the subtopologies of the worker have different partitions, each list begins with the name of its subtopology.
    """
    if row["phase"] is None:
        return None
    parts = row["subtopologies"]
    if not any(part["partitions"] for part in parts):
        return "none"
    if len({tuple(part["partitions"]) for part in parts}) == 1:
        return ranges(parts[0]["partitions"])
    return "; ".join(f"{part['subtopology']} {ranges(part['partitions'])}" for part in parts)


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as text; consecutive numbers are written as a range, for example ``0-2, 5``."""
    runs = [list(run) for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0])]
    return ", ".join(str(run[0][1]) if len(run) == 1 else f"{run[0][1]}-{run[-1][1]}" for run in runs)


def timers_in_words(timers: dict[str, Any] | None) -> str | None:
    """Text with the number of pending timers, and the due time of the next timer in stream time and processing time.

    None if the processor has no timers.
    """
    if timers is None:
        return None
    nexts = [(clock, timers[f"next_{clock}"]) for clock in ("stream", "processing")]
    due = ", ".join(f"{moment(at)} ({clock} time)" for clock, at in nexts if at is not None)
    return f"{timers['pending']:,}{'+' if timers['more'] else ''}" + (f", next {due}" if due else "")


def schedules_in_words(processors: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each schedule of a worker.

    A line has the next planned time, the last planned time at which the schedule fired, and the number of missed times.
    """
    found = []
    for row in processors:
        for name, each in (
            (name, one) for part in row["subtopologies"] for name, one in part.get("schedules", {}).items()
        ):
            next_one = "unknown" if each["next"] is None else moment(each["next"])
            last = "no slot fired yet" if each["last"] is None else f"last fired {moment(each['last'])}"
            missed = f", {each['missed']:,} slots missed" if each["missed"] else ""
            found.append(f"{row['processor']}, slot {row['slot']}, schedule {name}: next {next_one}, {last}{missed}")
    return found


def moment(seconds: float) -> str:
    """A time, given in seconds since 1970, as text in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"


def print_reasons(found: Sequence[Reason], console: Console, *, each_grey: bool) -> None:
    """Print each reason once, with the names of all its subjects and the next action.

    Grey subjects that turn green by themselves share one line. ``each_grey`` prints their reasons, too.
    """
    alone = [] if each_grey else [each for each in found if each.by_itself]
    for subjects, each in grouped(each for each in found if each not in alone):
        shade = "dim" if each.colour == "grey" else each.colour
        console.print(f"  [{shade}]{each.colour}[/] {_named(subjects)}: {escape(each.reason)}", soft_wrap=True)
        console.print(f"       What to do: {escape(each.action)}", soft_wrap=True)
    if alone:
        count = f"{len(alone)} subjects turn" if len(alone) > 1 else "1 subject turns"
        how = f"`holdfast status {alone[0].subject.partition(' ')[2].partition(',')[0]}` says why."
        said = f"{count} green without an action: {_named([each.subject for each in alone])}. {escape(how)}"
        console.print(f"  [dim]grey[/] {said}", soft_wrap=True, highlight=False)
    if not found:
        console.print("  [green]All is green.[/]")


def _named(subjects: Sequence[str]) -> str:
    more = len(subjects) - _SUBJECTS
    return escape(", ".join(subjects[:_SUBJECTS]) + (f" and {more} more" if more > 0 else ""))
