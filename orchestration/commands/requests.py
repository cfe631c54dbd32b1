"""From the words of a command line to a request, one function for each verb.

Each function's signature is the verb's command line: ``plan``, ``explain`` and ``apply`` add their own options to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import typer

from holdfast.processors.lifecycle.plans.requests import (
    Backfill,
    Clear,
    Compact,
    Deploy,
    Provision,
    Reposition,
    Request,
    Restore,
    Stop,
    selection_of,
)

Processor = Annotated[str, typer.Argument(help="The processor's name.", show_default=False)]
Stores = Annotated[list[str] | None, typer.Option("--store", help="A store; repeatable. None named: all of them.")]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", min=0, help="Only this partition; repeatable. None named: all.")
]


def provision(processor: Processor) -> Request:
    """Create the topics that are missing, and repair changelogs whose configuration drifted."""
    return Provision(processor)


def deploy(
    processor: Processor,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Until it has to work, seconds.")] = 120.0,
    drop: Annotated[
        list[str] | None, typer.Option(help="A store whose state is given up, its changelog deleted; repeatable.")
    ] = None,
) -> Request:
    """Bring the defined version up, and wait until it works on every partition; if it fails, go back."""
    return Deploy(processor, timeout_s, tuple(dict.fromkeys(drop or ())))


def stop(processor: Processor) -> Request:
    """Stop every slot gently; recovery leaves it alone until it is deployed again."""
    return Stop(processor)


def compact(processor: Processor) -> Request:
    """Have the running workers rewrite their local stores without what was overwritten or deleted."""
    return Compact(processor)


def reposition(processor: Processor) -> Request:
    """Read input on from where the state stands, where offsets were reset, expired, or point at what is gone."""
    return Reposition(processor)


def clear(  # tidy: allow-wide because each is an option of the command
    processor: Processor,
    store: Stores = None,
    key: Annotated[list[str] | None, typer.Option(help="A message key, as text; repeatable.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Message keys that begin so, as text.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All keys.")] = False,
    partition: Partitions = None,
    rewind: Annotated[
        Literal["stay", "earliest"],
        typer.Option(help="Where input is read from afterwards; earliest needs --all of all stores."),
    ] = "stay",
    export: Annotated[bool, typer.Option(help="Write the keys to a file before they are deleted.")] = True,
) -> Request:
    """Delete state, locally and in the changelog, so that it can't come back."""
    ways = "Give --key (one or more), --prefix, or --all."
    selection = selection_of(key or (), prefix, everything=everything, action=ways)
    return Clear(processor, tuple(store or ()), selection, tuple(sorted(set(partition or ()))), rewind, export)


def backfill(  # tidy: allow-wide because each is an option of the command
    processor: Processor,
    store: Annotated[str, typer.Option(help="The store.")],
    source: Annotated[
        Literal["local", "topic", "table"],
        typer.Option(
            "--from",
            help="local: fill the changelog from local state. topic: build the store anew. table: fill it from a "
            "table.",
        ),
    ],
    from_available: Annotated[
        bool, typer.Option("--from-available", help="From what the topics still have, where their beginning is gone.")
    ] = False,
    table: Annotated[str, typer.Option(help="The table of the catalog, as namespace.table.")] = "",
    key: Annotated[str, typer.Option(help="The table's column that has the message keys.")] = "",
    column: Annotated[
        list[str] | None, typer.Option(help="Only this column of the table; repeatable. None named: all.")
    ] = None,
) -> Request:
    """Fill a changelog from local state, or a store from its source topics or from a table."""
    return Backfill(processor, store, source, from_available, table, key, tuple(dict.fromkeys(column or ())))


def restore(  # tidy: allow-wide because each is an option of the command
    processor: Processor,
    store: Annotated[
        list[str] | None, typer.Option(help="With --at: a store, and what is built from its inputs; repeatable.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="From the warehouse: a tag, a snapshot's id, or latest.", show_default=False)
    ] = None,
    inputs: Annotated[
        Literal["snapshot", "copied", "earliest", "stay"],
        typer.Option(
            "--input",
            help="With --at, where input is read on: where the snapshot stood; the same in copied topics; all that is "
            "there; where it stands.",
        ),
    ] = "snapshot",
    partition: Partitions = None,
    source: Annotated[
        Literal["newest", "changelog"],
        typer.Option("--from", help="newest: checkpoint and the changelog's tail. changelog: all of the changelog."),
    ] = "newest",
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Until it has to work again, seconds.")] = 600.0,
) -> Request:
    """Build local state anew from changelogs; with --at, state and changelogs from a snapshot in the warehouse."""
    partitions, stores = tuple(sorted(set(partition or ()))), tuple(dict.fromkeys(store or ()))
    return Restore(processor, partitions, source, timeout_s, stores, at, inputs)


#: Every verb by its name.
VERBS: dict[str, Callable[..., Request]] = {
    each.__name__: each for each in (provision, deploy, stop, compact, reposition, clear, backfill, restore)
}
