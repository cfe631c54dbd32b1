"""One function for each verb (kind of change, for example ``deploy``). Its signature defines the command-line options.

Each function returns a request: the verb with its arguments, as data.

``commands.changes.verbs`` adds the options of ``plan``, ``explain`` and ``apply`` to each signature.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from holdfast.orchestration.commands import completion
from holdfast.orchestration.commands.options import Processor, Store
from holdfast.processors.lifecycle.plans.requests import (
    Adopt,
    Backfill,
    Clean,
    Clear,
    Compact,
    Deploy,
    Erase,
    Provision,
    PutBack,
    Replay,
    Reposition,
    Request,
    Restart,
    Restore,
    Rollback,
    Scale,
    Stop,
    selection_of,
)

Timeout = Annotated[
    float, typer.Option("--timeout", min=1, help="Seconds within which every partition must be processed.")
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", min=0, help="Only this partition; repeatable. Default: all partitions."),
]


def provision(processor: Processor) -> Request:
    """Create missing topics, and repair changelogs whose configuration differs from the required configuration."""
    return Provision(processor)


def deploy(
    processor: Processor,
    timeout_s: Timeout = 120.0,
    drop: Annotated[
        list[str] | None, typer.Option(help="Delete the state and the changelog of this store; repeatable.")
    ] = None,
) -> Request:
    """Start the defined version and wait until it processes every partition; roll back if it does not."""
    return Deploy(processor, timeout_s, tuple(dict.fromkeys(drop or ())))


def scale(
    processor: Processor,
    workers: Annotated[int, typer.Argument(help="Number of workers, each with its share of the partitions.", min=1)],
    warm_s: Annotated[
        float,
        typer.Option(
            "--warm", min=0, help="Seconds in which workers may fetch the state of their tasks to come; 0: none."
        ),
    ] = 600.0,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds within which every partition must be processed.")
    ] = 300.0,
) -> Request:
    """Run the deployed version in another number of workers; their state is fetched before partitions move.

    New workers fetch the state of their future partitions first, so that the rebalance interrupts processing only
    briefly.
    """
    return Scale(processor, workers, warm_s, timeout_s)


def stop(processor: Processor) -> Request:
    """Stop every slot after a commit; recovery does not restart the processor until the next deploy."""
    return Stop(processor)


def replay(processor: Processor) -> Request:
    """Send the messages of dead letters to their original topics again, and delete these dead letters."""
    return Replay(processor)


def restart(processor: Processor, timeout_s: Timeout = 120.0) -> Request:
    """Stop every slot after a commit, and start the deployed release again."""
    return Restart(processor, timeout_s)


def rollback(
    processor: Processor,
    to: Annotated[
        str, typer.Option(help="The release or its version. Default: the one that worked before the present one.")
    ] = "",
    timeout_s: Timeout = 120.0,
) -> Request:
    """Run an earlier release with the present state; return to the present release if it fails."""
    return Rollback(processor, to, timeout_s)


def compact(processor: Processor) -> Request:
    """Compact the local RocksDB stores of the running workers, which removes overwritten and deleted entries."""
    return Compact(processor)


def reposition(processor: Processor) -> Request:
    """Set the group's committed offsets to the position of the state.

    Use it after the committed offsets were reset, have expired, or point to lost records.
    """
    return Reposition(processor)


def clear(  # tidy: allow-wide because each parameter is an option of the command
    processor: Processor,
    store: Store = None,
    key: Annotated[list[str] | None, typer.Option(help="Delete this message key (text); repeatable.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Delete message keys that begin with this text.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all keys.")] = False,
    window: Annotated[
        str | None,
        typer.Option(
            help="Delete only the windows that contain a time from START up to END, of all keys or of `--key`, "
            "`--prefix`: START..END, or START for one time. ISO 8601 in UTC, or milliseconds since 1970.",
            show_default=False,
        ),
    ] = None,
    partition: Partitions = None,
    rewind: Annotated[
        Literal["stay", "earliest"],
        typer.Option(
            help="Where the processor continues to read its input. stay: at the committed offsets. earliest: at the "
            "start of its topics; needs --all of all stores."
        ),
    ] = "stay",
    export: Annotated[bool, typer.Option(help="Write the keys to a file before they are deleted.")] = True,
) -> Request:
    """Delete state in the local stores and in the changelogs. A later restore does not bring the deleted keys back."""
    ways = "Give exactly one of `--key` (repeatable), `--prefix` and `--all`."
    selection = selection_of(key or (), prefix, everything=everything, action=ways, window=window)
    return Clear(processor, tuple(store or ()), selection, tuple(sorted(set(partition or ()))), rewind, export)


def erase(
    processor: Processor, key: Annotated[str, typer.Argument(help="The message key (text).", show_default=False)]
) -> Request:
    """Delete every copy of a message key, prove that each is gone, and record a certificate."""
    return Erase(processor, key)


def backfill(  # tidy: allow-wide because each parameter is an option of the command
    processor: Processor,
    store: Annotated[str, typer.Option(help="The store to fill.", autocompletion=completion.stores)],
    source: Annotated[
        Literal["local", "topic", "table"],
        typer.Option(
            "--from",
            help="local: write local state to the changelog. topic: rebuild the store from its source topics. table: "
            "fill the store from a table of the catalog.",
        ),
    ],
    from_available: Annotated[
        bool,
        typer.Option(
            "--from-available", help="With `--from topic`: accept that the first records of the topics are deleted."
        ),
    ] = False,
    table: Annotated[str, typer.Option(help="With `--from table`: the table, as namespace.table.")] = "",
    key: Annotated[str, typer.Option(help="With `--from table`: the column that holds the message keys.")] = "",
    column: Annotated[
        list[str] | None, typer.Option(help="With `--from table`: only this column; repeatable. Default: all columns.")
    ] = None,
) -> Request:
    """Fill a changelog from local state, or a store from its source topics or from a table."""
    return Backfill(processor, store, source, from_available, table, key, tuple(dict.fromkeys(column or ())))


def restore(  # tidy: allow-wide because each parameter is an option of the command
    processor: Processor,
    store: Annotated[
        list[str] | None,
        typer.Option(
            help="With `--at`: only this store and the stores of the same inputs. With `--from-file`: only this store. "
            "Repeatable. Default: all."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="Restore from the warehouse: a tag, the id of a snapshot, or `latest`.", show_default=False),
    ] = None,
    inputs: Annotated[
        Literal["snapshot", "copied", "earliest", "stay"],
        typer.Option(
            "--input",
            help="With `--at`: where the processor continues to read its input. `snapshot`: at the snapshot's offsets. "
            "`copied`: at the same records in copied topics. `earliest`: at the start of the topics. `stay`: at the "
            "committed offsets.",
        ),
    ] = "snapshot",
    partition: Partitions = None,
    source: Annotated[
        Literal["newest", "changelog"],
        typer.Option("--from", help="newest: a checkpoint and the changelog's tail. changelog: the whole changelog."),
    ] = "newest",
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds within which the processor must process again.")
    ] = 600.0,
    from_file: Annotated[
        str | None,
        typer.Option(
            "--from-file", help="Put the entries of this export file back; other keys stay.", show_default=False
        ),
    ] = None,
) -> Request:
    """Rebuild local state from the changelogs; `--at`: from the warehouse; `--from-file`: put an export back.

    With `--at`, all state is restored from a snapshot in the warehouse. With `--from-file`, the entries of an export
    file are written back.
    """
    partitions, stores = tuple(sorted(set(partition or ()))), tuple(dict.fromkeys(store or ()))
    file = None if from_file is None else str(Path(from_file).absolute())
    return Restore(processor, partitions, source, timeout_s, stores, at, inputs, file)


def adopt(processor: Processor) -> Request:
    """Correct a registry that was replaced by an older copy: record the newest deployment again; start nothing."""
    return Adopt(processor)


def clean(
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only orphans that match KIND, NAME or KIND/NAME; repeatable.")
    ] = None,
) -> Request:
    """Archive resources that no registered store owns (orphans).

    Orphans whose archived copy is older than the grace period are deleted.
    """
    return Clean(tuple(dict.fromkeys(only or ())))


def put_back(topic: Annotated[str, typer.Argument(help="Name of the deleted topic.")]) -> Request:
    """Recreate a deleted topic with its partitions, configuration and records from the archive.

    No topic with this name may exist.
    """
    return PutBack(topic)


#: Verb, as typed on the command line -> the function that returns the request of this verb.
VERBS: dict[str, Callable[..., Request]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        *(provision, deploy, scale, stop, restart, rollback, compact, reposition),
        *(clear, erase, backfill, restore, replay, adopt, clean, put_back),
    )
}
