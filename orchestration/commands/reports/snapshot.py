"""``holdfast snapshot``: prints rows of a store's warehouse table without a JVM.

With ``--start``, it first publishes a new version of the table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.orchestration.commands.options import Internals, Json, OneStore, Processor, command_settings, print_json
from holdfast.orchestration.commands.reports.query import only_store
from holdfast.orchestration.commands.tables import print_table
from holdfast.orchestration.view.progress import Progress
from holdfast.processors.lifecycle.plans.facts.warehouse import StoreTable, StoreVersion

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings

#: Columns with the changelog's raw bytes, which are not printed. Other columns have the same content in readable form.
RAW = frozenset({"key", "value"})
#: Maximum seconds to wait for the run that publishes a table.
RUN_S = 3_600.0
#: Seconds between two progress lines if the output is not a terminal.
REPEAT_S = 30.0
_SHOWN = 5


class NoSuchVersion(HoldfastError):
    """The table has no version at all, or no version that ``--at`` selects. Fields: table, at."""

    exit_code = EXIT_BAD_CONFIGURATION


def snapshot(  # tidy: allow-wide because each parameter is an option of the command
    processor: Processor,
    store: OneStore = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="A version: a tag, the id of a snapshot, a version's number, or a time in ISO 8601 for the newest "
            "version of then. Default: the newest.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of rows.")] = 20,
    start: Annotated[bool, typer.Option("--start", help="Publish a new version through Dagster first.")] = False,
    internals: Internals = False,
    as_json: Json = False,
) -> None:
    """Print rows of a store's table, with its version, its offsets and its age."""
    from holdfast.orchestration.commands.reports.readable_rows import columns_for_people, is_internal
    from holdfast.processors.application.registration import find_processor

    settings = command_settings()
    stores = {each.name: each for each in find_processor(settings, processor).topology.stores}
    chosen = store or only_store(processor, list(stores))
    if start:
        _publish(settings, processor, chosen)
    whole, spec = internals or as_json, stores.get(chosen)

    def keep(row: dict[str, Any]) -> bool:
        return whole or not is_internal(spec, row.get("message_key"), str(row.get("state_key", "")))

    table, version, rows = _read(settings, (processor, chosen), at, limit, keep)
    names = None if whole else columns_for_people(rows, spec)
    document = described(table, version, rows, time.time())
    if as_json:
        print_json(document)
    else:
        _print(document, names)


def version_at(table: StoreTable, at: str | None) -> StoreVersion:
    """The table version that ``at`` selects.

    ``at`` is a tag, an id, a number, or a time. A time selects the newest version that was written before this time.
    None selects the newest version.

    Raises:
        NoSuchVersion: No version matches.
        HoldfastError: The table can't be read.
    """
    if table.problem:
        raise NoSuchVersion(table.problem, action=table.action, table=table.table)
    if at is None:
        found = next((each for each in table.versions if each.current), None)
    else:
        found = next((each for each in table.versions if each.answers(at)), None) or _of_time(table.versions, at)
    if found is not None:
        return found
    known = "; ".join(
        f"{', '.join(each.tags) or each.version} of {_told(each.written_at)}" for each in table.versions[:_SHOWN]
    )
    raise NoSuchVersion(
        f"{table.table} has no version {at or 'yet'}; the newest are {known or 'none'}.",
        action="Name one of them or a later time after `--at`, or publish one with `--start`.",
        table=table.table,
        at=at,
    )


def _of_time(versions: Sequence[StoreVersion], at: str) -> StoreVersion | None:
    """The newest version that was written before the time ``at``.

    None if no version is older, or if ``at`` is not a time.
    """
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return None
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    then = [each for each in versions if each.written_at <= seconds]
    return max(then, key=lambda each: each.written_at, default=None)


def _read(
    settings: Settings, store: tuple[str, str], at: str | None, limit: int, keep: Callable[[dict[str, Any]], bool]
) -> tuple[StoreTable, StoreVersion, list[dict[str, Any]]]:
    """Reads a version of a store's table, which ``at`` selects (``version_at``).

    Returns the table, the version, and the first rows for which ``keep`` is true.
    """
    # imported late, because loading the Iceberg library takes a second
    from holdfast.infra.warehouse.catalog import existing_catalog
    from holdfast.infra.warehouse.stored_tables import StoredTables
    from holdfast.processors.lifecycle.world.warehouse import WarehouseTables

    stored = StoredTables(lambda: existing_catalog(settings))
    table = WarehouseTables(lambda: stored).store_table(*store)
    version = version_at(table, at)
    _, namespace, name = table.table.split(".")
    columns = [each for each in stored.columns(namespace, name) if each not in RAW]
    rows: list[dict[str, Any]] = []
    for batch in stored.read((namespace, name), version.version, columns) if limit else ():
        rows += [row for row in batch.to_pylist() if keep(row)][: limit - len(rows)]
        if len(rows) == limit:
            break
    return table, version, rows


def _publish(settings: Settings, processor: str, store: str) -> None:
    from holdfast.assets.keys import snapshot_key
    from holdfast.orchestration.view.runs import DagsterRuns

    runs, told = DagsterRuns(settings), RunProgress(Console(stderr=True))
    run = runs.launch([snapshot_key(processor, store).path])
    told.line(f"run {run[:8]} is launched: {runs.url}/runs/{run}. Ctrl-C ends the waiting, not the run.")
    with told.spinner:
        runs.wait(run, told, RUN_S)
    told.line(f"run {run[:8]} has succeeded")


class RunProgress:
    """Prints the progress of a Dagster run: a new line for each new state, and a spinner that shows details.

    If the output is no terminal, a spinner is impossible, so a line is printed every ``REPEAT_S`` instead.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock, self._last = console, clock, Progress("")
        self._told_at = clock()
        self.spinner = console.status("waiting for Dagster …")

    def __call__(self, progress: Progress) -> None:
        """Update the spinner, and print a line if the run's state has changed since the last line."""
        whole = f"{progress.state} {progress.now}".strip()
        self.spinner.update(escape(whole))
        repeated = not self._console.is_terminal and self._clock() - self._told_at >= REPEAT_S
        if progress != self._last or repeated:
            self.line(whole)
        self._last = progress

    def line(self, text: str) -> None:
        """Print a permanent line above the spinner."""
        self._told_at = self._clock()
        self._console.print(escape(text), highlight=False, soft_wrap=True)


def described(table: StoreTable, version: StoreVersion, rows: Sequence[dict[str, Any]], now: float) -> dict[str, Any]:
    """The JSON document of a table version and of the given rows; ``now`` is in seconds since 1970."""
    manifest = version.manifest
    taken = version.written_at if manifest is None else manifest.taken_at
    offsets: dict[str, dict[str, int]] = {}
    for part in () if manifest is None else manifest.partitions:
        for topic, offset in part.inputs.items():
            offsets.setdefault(topic, {})[str(part.partition)] = offset
    return {
        "table": table.table,
        "version": str(version.version),
        "tags": list(version.tags),
        "snapshot": None if manifest is None else manifest.snapshot_id,
        "taken_at": datetime.fromtimestamp(taken, UTC).isoformat(timespec="seconds"),
        "age_s": round(max(0.0, now - taken), 1),
        "keys": None if manifest is None else manifest.rows,
        "offsets": offsets,
        "rows": [{name: _plain(value) for name, value in row.items()} for row in rows],
    }


def _plain(value: Any) -> Any:
    """A column's value for JSON: bytes become hexadecimal digits, and values of unknown types become text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.hex() if isinstance(value, bytes) else str(value)


def _told(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"


def _print(document: dict[str, Any], names: Sequence[str] | None) -> None:
    """Print the rows with the columns ``names``, or with all columns for None."""
    console = Console()
    rows = document["rows"] if names is None else [{name: row[name] for name in names} for row in document["rows"]]
    if rows:
        shown = Table(*rows[0])
        for row in rows:
            texts = (
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in row.values()
            )
            shown.add_row(*map(escape, texts))
        print_table(shown, console)
    keys = "" if document["keys"] is None else f", {document['keys']:,} keys"
    age = document["age_s"]
    old = f"{age:,.0f} s" if age < 600 else f"{age / 60:,.0f} minutes" if age < 36_000 else f"{age / 3600:,.0f} hours"
    console.print(
        f"{document['table']}, version {document['version']} of {document['taken_at']} ({old} old{keys}).",
        highlight=False,
        soft_wrap=True,
    )
    for topic, parts in document["offsets"].items():
        at = ", ".join(
            f"{number}: {offset:,}" for number, offset in sorted(parts.items(), key=lambda each: int(each[0]))
        )
        console.print(f"Offsets of {escape(topic)} by partition: {at}", highlight=False, soft_wrap=True)
