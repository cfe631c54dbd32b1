"""``holdfast query``: looks up keys of a store in the running workers. Only reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.orchestration.commands.options import Internals, Json, OneStore, Processor, command_settings, print_json
from holdfast.orchestration.commands.tables import print_table
from holdfast.processors.engine.runtime.owner_commands.commands import READ_ENTRIES_MAX
from holdfast.processors.lifecycle.plans.requests import selection_of
from holdfast.processors.lifecycle.plans.store_words import record_in_words

if TYPE_CHECKING:
    from holdfast.processors.engine.topology import StoreSpec
    from holdfast.processors.lifecycle.world.running_owners import Found


def query(  # tidy: allow-wide because each parameter is an option of the command
    processor: Processor,
    key: Annotated[list[str] | None, typer.Argument(help="Message keys (text).", show_default=False)] = None,
    store: OneStore = None,
    prefix: Annotated[str | None, typer.Option(help="All message keys that begin with this text.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All keys.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=READ_ENTRIES_MAX, help="Maximum number of entries.")] = 100,
    internals: Internals = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Print the keys again whenever they change, until Ctrl-C. JSON: one line each."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Look keys up in the running workers, as of their last commit. Exit code 1: nothing was found."""
    if watch:
        _watch(processor, key or [], store, limit, as_json=as_json, other=everything or internals or prefix is not None)
        return
    from holdfast.orchestration.verbs import open_verbs

    ways = "Give keys, or one of `--prefix` and `--all`."
    selection = selection_of(key or (), prefix, everything=everything, action=ways)
    with open_verbs(command_settings()) as verbs:
        stores = verbs.definition(processor).topology.stores
        chosen = store or only_store(processor, [each.name for each in stores if each.follows_input])
        found = verbs.query(processor, chosen, selection, limit)
    if as_json:
        print_json(document(processor, chosen, found))
    else:
        _print(processor, next(each for each in stores if each.name == chosen), found, internals=internals)
    raise typer.Exit(int(not found.rows))


def _watch(processor: str, keys: list[str], store: str | None, limit: int, *, as_json: bool, other: bool) -> None:
    # imported late, because they are needed with this option only
    from holdfast.orchestration.commands.reports import query_watch
    from holdfast.processors.lifecycle.plans.apply import PlanRefused

    if other or not keys:
        raise PlanRefused(
            "`--watch` has no keys, or it is combined with `--prefix`, `--all` or `--internals`; expected keys only.",
            action=f"Name the keys: `holdfast query {processor} KEY --watch`.",
            processor=processor,
        )

    def show(chosen: str, found: Found) -> None:
        if as_json:
            query_watch.print_line(document(processor, chosen, found))
        else:
            query_watch.print_found(processor, chosen, found)

    choose = partial(only_store, processor) if store is None else lambda stores: store
    query_watch.watch(command_settings(), processor, keys, choose, show, limit)


def only_store(processor: str, stores: list[str]) -> str:
    """The name of the processor's only store.

    Raises:
        PlanRefused: The processor has no store, or several stores.
    """
    # imported late, because it loads the database library
    from holdfast.processors.lifecycle.plans.apply import PlanRefused

    if len(stores) == 1:
        return stores[0]
    raise PlanRefused(
        f"{processor} has {len(stores)} stores ({', '.join(stores) or 'none'}); expected one, or its name.",
        action="Name one of them after `--store`." if stores else "Name a processor that keeps state.",
        processor=processor,
    )


def document(processor: str, store: str, found: Found) -> dict[str, Any]:
    """The JSON document that lists the found entries."""
    return {
        "processor": processor,
        "store": store,
        "from": found.where,
        "rows": list(found.rows),
        "more": found.more,
        "places": [
            {"partition": each.partition, "slot": each.slot, "inputs": dict(each.inputs)} for each in found.places
        ],
    }


def _print(processor: str, store: StoreSpec, found: Found, *, internals: bool) -> None:
    # Imported late, because `readable_rows` also loads the modules with the types of columns.
    from holdfast.orchestration.commands.reports.readable_rows import is_internal

    console = Console()
    places = {each.partition: each for each in found.places}
    rows = [row for row in found.rows if internals or not is_internal(store, row.get("key"), row["state"])]
    if rows:
        names, shown = _columns(store, rows, internals=internals)
        table = Table("key", *names, "partition", "slot", "at offset")
        for row, texts in zip(rows, shown, strict=True):
            place = places[row["partition"]]
            at = ", ".join(f"{topic} {offset:,}" for topic, offset in sorted(place.inputs.items()))
            key = row["key"] if "key" in row else f"base64 {row['key_base64']}"
            table.add_row(*map(escape, (key, *texts, str(row["partition"]), row["slot"], at)))
        print_table(table, console)
    elif found.rows:
        console.print(f"Only {len(found.rows)} internal records match. `--internals` shows them.", highlight=False)
    else:
        where = f"{len(places)} partition(s)"
        console.print(f"Store {escape(store.name)} of {escape(processor)} has no such key in {where}.")
    if found.more:
        console.print("There are more entries. Raise `--limit`, or narrow the keys.")
    console.print(f"Read from {found.where}, as of the last commit.", highlight=False)


def _columns(
    store: StoreSpec, rows: Sequence[Mapping[str, Any]], *, internals: bool
) -> tuple[list[str], list[list[str]]]:
    """The names of the printed columns of values, and the texts of each row.

    A value that does not fit the store's model has no columns, so its JSON is printed beside them.
    """
    from holdfast.orchestration.commands.reports.readable_rows import NO_VALUE, built_in, cells, of_model

    if not internals and (known := built_in(store)) is not None:
        return [each.name for each in known.columns], [
            cells(known.columns, row["state"], row.get("value")) for row in rows
        ]
    if internals or (model := of_model(store)) is None:
        return ["state", "value"], [list(_as_stored(store, row)) for row in rows]
    made = [cells(model.columns, row["state"], row.get("value")) for row in rows]
    states = [_as_stored(store, row) for row in rows]
    unlike = [set(each) == {NO_VALUE} for each in made]
    texts = [[state, *each] for (state, _), each in zip(states, made, strict=True)]
    names = ["state", *(each.name for each in model.columns)]
    if any(unlike):
        names.append("value")
        texts = [
            [*each, value if other else NO_VALUE] for each, (_, value), other in zip(texts, states, unlike, strict=True)
        ]
    return names, texts


def _as_stored(store: StoreSpec, row: Mapping[str, Any]) -> tuple[str, str]:
    """Returns two texts about an entry: its state key in words, and its value as stored (JSON or base64)."""
    value = json.dumps(row["value"], ensure_ascii=False) if "value" in row else f"base64 {row['value_base64']}"
    return record_in_words(store, row["state"], row.get("value")), value
