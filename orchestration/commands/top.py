"""``holdfast top``: state, phase, lag, rate and restore progress of every processor, refreshed every few seconds.

Invariants:
    - Reads only. A processor that can't be read gets an error line; the next look reads it again.
    - A rate is the number of records processed between two looks, divided by the seconds between them. A restarted
      process has no rate until its second look.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from holdfast.infra.database.records import Incident
from holdfast.infra.database.registry import Registry
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import Settings
from holdfast.orchestration.commands.options import command_settings
from holdfast.orchestration.world import build_world, open_registry
from holdfast.processors.engine.serving.status import ProcessorStatus, TaskStatus
from holdfast.processors.lifecycle.deploy.observing_all import look_at_all
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.diagnosis import Limits
from holdfast.processors.lifecycle.recovery.recovery import Observation, observe

#: Seconds between the first look, which only starts the rates, and the first look that is printed.
_FIRST_S = 1.0
#: Characters of a progress bar. rich's own bar is a renderable of its own: a cell could not add percent and seconds.
_BAR = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One instance of a processor; None stands for unknown."""

    processor: str
    slot: str
    state: str
    phase: str | None
    paused: bool
    tasks: int
    tasks_running: int
    lag: int | None
    records_per_s: float | None
    #: Seconds to work off the lag at the current rate.
    behind_s: float | None
    #: Progress of the slowest restore, 0 to 1, and the seconds until all restores end.
    restored: float | None
    restore_s_left: float | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Records that a process had processed at a moment; times in seconds since 1970."""

    started_at: float
    at: float
    processed: int


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look at all processors."""

    rows: tuple[Row, ...]
    incidents: tuple[Incident, ...]
    #: (processor, slot) -> the sample that the next look makes a rate from.
    samples: Mapping[tuple[str, str], Sample]
    #: One sentence for each processor that could not be read.
    failures: tuple[str, ...] = ()


def top(
    processor: Annotated[list[str] | None, typer.Argument(help="Only these processors. Default: all.")] = None,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    times: Annotated[
        int | None,
        typer.Option(min=1, help="Number of looks. Default: until interrupted; one look when stdout is no terminal."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each look as one line of JSON.")] = False,
) -> None:
    """Watch state, phase, lag, rate and restore progress of processors; processors in trouble come first."""
    settings = command_settings("ERROR")
    console = Console()
    live = console.is_terminal and not as_json
    count = times or (None if live else 1)
    with suppress(KeyboardInterrupt):
        if live:
            with Live(console=console, screen=count is None, auto_refresh=False) as shown:
                for look in _looks(settings, tuple(processor or ()), every, count):
                    shown.update(page(look), refresh=True)
        else:
            for look in _looks(settings, tuple(processor or ()), every, count):
                if as_json:
                    typer.echo(json.dumps(document(look)))
                else:
                    console.print(page(look))


def _looks(settings: Settings, only: Sequence[str], every_s: float, count: int | None) -> Iterator[Look]:
    if settings.registry_url is None and not settings.paths.registry.exists():
        yield Look((), (), {})
        return
    with closing(open_registry(settings)) as registry:
        world, limits = build_world(settings.paths, registry), Limits(stuck_after_s=settings.stuck_after_s)
        seen = take(registry, world, limits, only, {})
        pause_s, done = min(_FIRST_S, every_s), 0
        while count is None or done < count:
            time.sleep(pause_s)
            seen = take(registry, world, limits, only, seen.samples)
            yield seen
            pause_s, done = every_s, done + 1


def take(
    registry: Registry, world: World, limits: Limits, only: Sequence[str], before: Mapping[tuple[str, str], Sample]
) -> Look:
    """Look at the deployed processors; ``before`` has the samples of the last look."""
    rows: list[Row] = []
    samples: dict[tuple[str, str], Sample] = {}
    failures: list[str] = []
    incidents: tuple[Incident, ...] = ()
    try:
        incidents = registry.open_incidents()
        deployments = registry.deployments()
    except HoldfastError as failed:
        return Look((), (), before, (failed.message,))
    chosen = [each for each in deployments if not only or each.processor in only]
    world = look_at_all(world, chosen)
    for deployment in chosen:
        name = deployment.processor
        try:
            seen = observe(name, world, limits)
        except HoldfastError as failed:
            failures.append(f"{name}: {failed.message}")
            continue
        for slot, each in seen.items():
            alive = each.program is not None and each.program.alive
            status = each.status if alive and isinstance(each.status, ProcessorStatus) else None
            rows.append(
                row_of(name, slot, each, status, before.get((name, slot)), down=deployment.desired == "stopped")
            )
            if status is not None:
                samples[name, slot] = sample_of(status)
    shown = tuple(each for each in incidents if not only or each.processor in only)
    return Look(tuple(sorted(rows, key=_trouble)), shown, samples, tuple(failures))


def sample_of(status: ProcessorStatus) -> Sample:
    """The sample of a status, which the next look makes a rate from."""
    return Sample(status.started_at, status.heartbeat_at, int(status.records.get("processed", 0)))


def row_of(  # tidy: allow-wide because each is a fact of the row
    processor: str,
    slot: str,
    seen: Observation,
    status: ProcessorStatus | None,
    before: Sample | None,
    *,
    down: bool = False,
) -> Row:
    """The row of one instance, from its status now and its sample at the last look."""
    tasks = () if status is None else status.tasks
    lag = None if status is None else status.lag
    rate = None if status is None else _rate(before, sample_of(status))
    restored, left = _restore(tasks)
    return Row(
        processor=processor,
        slot=slot,
        state="down" if down and status is None else seen.diagnosis.kind,
        phase=None if status is None else status.phase,
        paused=status is not None and status.paused,
        tasks=len(tasks),
        tasks_running=sum(task.phase == "running" for task in tasks),
        lag=lag,
        records_per_s=rate,
        behind_s=round(lag / rate, 1) if lag and rate else None,
        restored=restored,
        restore_s_left=left,
        sentence=seen.diagnosis.sentence,
    )


def _rate(before: Sample | None, now: Sample) -> float | None:
    if before is None or before.started_at != now.started_at or now.at <= before.at:
        return None
    return round((now.processed - before.processed) / (now.at - before.at), 1)


def _restore(tasks: Iterable[TaskStatus]) -> tuple[float | None, float | None]:
    """Progress of the slowest restore, 0 to 1, and the seconds until all end; None where unknown."""
    shares: list[float] = []
    rest: list[float | None] = []
    for task in tasks:
        if task.restore is not None:
            left, gone = task.restore.get("seconds_left"), task.restore.get("seconds", 0.0)
            shares.append(0.0 if left is None else gone / max(gone + left, 1e-9))
            rest.append(left)
    known = [left for left in rest if left is not None]
    return (
        round(min(shares), 3) if shares else None,
        max(known) if known and len(known) == len(rest) else None,
    )


def _trouble(row: Row) -> tuple[int, int, str, str]:
    """Sort key: processors in trouble first, then by lag, the longest first."""
    order = {"healthy": 2, "starting": 1, "down": 3, "not-deployed": 3}.get(row.state, 0)
    return order, -(row.lag or 0), row.processor, row.slot


def document(look: Look) -> dict[str, object]:
    """The JSON document of a look."""
    return {
        "processors": [asdict(row) for row in look.rows],
        "incidents": [{"id": each.id, "processor": each.processor, "kind": each.kind} for each in look.incidents],
        "failures": list(look.failures),
    }


def page(look: Look) -> RenderableType:
    """The terminal page of a look: a table, then incidents and errors."""
    parts: list[RenderableType] = []
    if look.rows:
        table = Table("processor", "slot", "state", "phase", "tasks", box=None, pad_edge=False)
        for name in ("lag", "records/s", "behind"):
            table.add_column(name, justify="right")
        table.add_column("restore")
        for row in look.rows:
            table.add_row(*_cells(row))
        parts.append(table)
    elif not look.failures:
        parts.append(Text("No deployed processor to show."))
    parts += [Text(f"{each.processor}: incident {each.id}, {each.kind}", style="yellow") for each in look.incidents]
    sick = [row for row in look.rows if _trouble(row)[0] == 0]
    parts += [Text(f"{row.processor} {row.slot}: {row.sentence}", style="red") for row in sick]
    parts += [Text(each, style="red") for each in look.failures]
    return Group(*parts)


def _cells(row: Row) -> tuple[str, ...]:
    colour = {0: "red", 1: "yellow", 2: "green"}.get(_trouble(row)[0], "dim")
    return (
        escape(row.processor),
        escape(row.slot),
        f"[{colour}]{row.state}[/]" + (" [red]PAUSED[/]" if row.paused else ""),
        row.phase or "-",
        f"{row.tasks_running}/{row.tasks}" if row.phase else "-",
        "-" if row.lag is None else f"{row.lag:,}",
        "-" if row.records_per_s is None else f"{row.records_per_s:,.0f}",
        "-" if row.behind_s is None else f"{row.behind_s:,.0f} s",
        _bar(row),
    )


def _bar(row: Row) -> str:
    if row.restored is None:
        return ""
    full = int(row.restored * _BAR)
    left = "" if row.restore_s_left is None else f", {row.restore_s_left:,.0f} s left"
    return f"{'█' * full}{'░' * (_BAR - full)} {row.restored:.0%}{left}"
