"""``holdfast query --watch``: prints keys again whenever their values or their position change."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.orchestration.commands.tables import print_table
from holdfast.processors.engine.queries.errors import StateAway
from holdfast.processors.lifecycle.world.running_owners import Found, Place

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings
    from holdfast.processors.client.answers import StateAnswer

#: Seconds between two reads.
EVERY_S = 1.0

Read = Callable[[], "list[StateAnswer]"]


def changes(read: Read, away: Callable[[str], None], pause: Callable[[], None]) -> Iterator[Sequence[StateAnswer]]:
    """Reads without end, and yields the answers that differ from the last ones by a value or by a position.

    Args:
        away: Gets the reason once, if no worker can answer for a time.

    Raises:
        StateAway: No worker could answer the first read.
    """
    last = why = None
    while True:
        try:
            answers = read()
        except StateAway as failure:
            if last is None:
                raise
            if why is None:
                away(failure.message)
            why = failure.message
        else:
            why, now = None, [_fact(each) for each in answers]
            if now != last:
                last = now
                yield answers
        pause()


def _fact(answer: StateAnswer) -> tuple[object, ...]:
    inputs = [(each.partition, dict(each.inputs)) for each in answer.positions]
    return answer.found, dict(answer.state), list(answer.windows), answer.row, inputs


def found_of(answers: Sequence[StateAnswer], limit: int) -> Found:
    """The answers as entries of a store, for the document of ``holdfast query``.

    ``timestamp_ms`` of an entry is the time of the commit. ``state`` of a window has its start and end.
    """
    rows = [row for answer in answers for row in _rows(answer)]
    places = {
        each.partition: Place(each.partition, each.worker, each.inputs) for of in answers for each in of.positions
    }
    more = len(rows) > limit or any(each.next for each in answers)
    return Found(tuple(rows[:limit]), more, tuple(places[at] for at in sorted(places)), "the running workers")


def _rows(answer: StateAnswer) -> Iterator[dict[str, Any]]:
    # imported late, because `--help` needs neither
    from holdfast.processors.engine.joins.table_rows import ROW
    from holdfast.processors.engine.state.time.stream_time import shown

    at = answer.position
    if not answer.found or at is None:
        return
    head = {
        "store": answer.store,
        "partition": at.partition,
        "timestamp_ms": int(at.committed_at * 1000),
        "slot": at.worker,
        "key": answer.key,
    }
    if answer.row is not None:
        yield {**head, "state": ROW, "value": answer.row}
    for window in answer.windows:
        yield {**head, "state": f"{shown(window['start'])} to {shown(window['end'])}", "value": window["value"]}
    for name, value in answer.state.items():
        stored = {"value_base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else {"value": value}
        yield {**head, "state": name, **stored}


def watch(
    settings: Settings,
    processor: str,
    keys: Sequence[str],
    choose: Callable[[list[str]], str],
    show: Callable[[str, Found], None],
    limit: int,
) -> None:
    """Prints keys until the user presses Ctrl-C.

    Args:
        choose: A function that returns the store, of the names of all stores.
        show: A function that prints the entries of a store.
    """
    # imported late, because `--help` needs no client
    from holdfast.processors.client.state_client import StateClient
    from holdfast.processors.engine.topology import INTERNAL_KINDS

    console = Console(stderr=True)
    with StateClient(processor, home=settings.home) as client:
        try:
            store = choose([each["store"] for each in client.stores() if each["kind"] not in INTERNAL_KINDS])
            for answers in changes(
                lambda: client.many(store, keys),
                lambda why: console.print(f"{escape(why)} Waiting for a worker.", highlight=False, soft_wrap=True),
                lambda: time.sleep(EVERY_S),
            ):
                show(store, found_of(answers, limit))
        except KeyboardInterrupt:  # Ctrl-C is the normal end of `--watch`
            return


def print_found(processor: str, store: str, found: Found) -> None:
    """Prints the time and a table of entries."""
    console = Console()
    places: Mapping[int, Place] = {each.partition: each for each in found.places}
    console.print(f"{datetime.now(UTC):%H:%M:%S} UTC", highlight=False)
    if not found.rows:
        where = f"{len(places)} partition(s)"
        console.print(f"Store {escape(store)} of {escape(processor)} has no such key in {where}.", highlight=False)
        return
    table = Table("key", "state", "value", "partition", "slot", "at offset")
    for row in found.rows:
        at = ", ".join(f"{topic} {offset:,}" for topic, offset in sorted(places[row["partition"]].inputs.items()))
        value = json.dumps(row["value"], ensure_ascii=False) if "value" in row else f"base64 {row['value_base64']}"
        table.add_row(*map(escape, (row["key"], row["state"], value, str(row["partition"]), row["slot"], at)))
    print_table(table, console)
    if found.more:
        console.print("There are more entries. Raise `--limit`.")


def print_line(document: Mapping[str, Any]) -> None:
    """Prints a document as one line of JSON."""
    typer.echo(json.dumps(document))
