"""``holdfast top``: prints state, phase, lag, rate and restore progress of every processor, every few seconds.

Invariants:
    - This command only reads. A processor that can't be read gets an error line; the next observation reads it again.
    - A rate is the number of records processed between two observations, divided by the seconds between them. So a
      restarted worker has no rate until its second observation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from holdfast.infra.errors import HoldfastError
from holdfast.orchestration.commands.options import command_settings
from holdfast.processors.engine.serving.status import ProcessorStatus, TaskStatus
from holdfast.processors.lifecycle.deploy.observing_all import look_at_all
from holdfast.processors.lifecycle.recovery.limits import Limits

if TYPE_CHECKING:
    from holdfast.infra.database.records import Incident
    from holdfast.infra.database.registry import Registry
    from holdfast.infra.settings import Settings
    from holdfast.processors.lifecycle.ports import World
    from holdfast.processors.lifecycle.recovery.incidents import Observation

#: Maximum seconds between the first and the second observation. The first observation is not printed, because no rate
#: can be computed from it.
_FIRST_S = 1.0
#: Length of a progress bar, characters. The bar is text, because rich's own progress bar can't share a table cell with
#: percent and seconds.
_BAR = 10


Statuses = Mapping[tuple[str, str], ProcessorStatus]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: one worker of a processor and its slot (number). None means that a value is unknown."""

    processor: str
    slot: str
    state: str
    sentence: str
    phase: str | None = None
    paused: bool = False
    tasks: int = 0
    tasks_running: int = 0
    lag: int | None = None
    records_per_s: float | None = None
    #: Seconds until the lag is processed at the current rate.
    behind_s: float | None = None
    #: Progress of the slowest restore, from 0 to 1. The next field is the estimated seconds until all restores end.
    restored: float | None = None
    restore_s_left: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """One observation of all processors by ``holdfast top``."""

    rows: tuple[Row, ...]
    incidents: tuple[Incident, ...]
    #: (processor, slot of the worker) -> status of the worker; the next observation computes the rate from it.
    statuses: Statuses
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
    looks = _looks(settings, tuple(processor or ()), every, count)
    with suppress(KeyboardInterrupt):
        if live:
            with Live(console=console, screen=count is None, auto_refresh=False) as shown:
                for look in looks:
                    shown.update(page(look), refresh=True)
        elif as_json:
            for look in looks:
                typer.echo(json.dumps(document(look)))
        else:
            for look in looks:
                console.print(page(look))


def _looks(settings: Settings, only: Sequence[str], every_s: float, count: int | None) -> Iterator[Look]:
    from holdfast.orchestration.world import build_world, open_registry

    if settings.registry_url is None and not settings.paths.registry.exists():
        yield Look((), (), {})
        return
    with closing(open_registry(settings)) as registry:
        world, limits = build_world(settings, registry), Limits(stuck_after_s=settings.stuck_after_s)
        seen = take(registry, world, limits, only, {})
        pause_s, done = min(_FIRST_S, every_s), 0
        while count is None or done < count:
            time.sleep(pause_s)
            seen = take(registry, world, limits, only, seen.statuses)
            yield seen
            pause_s, done = every_s, done + 1


def take(registry: Registry, world: World, limits: Limits, only: Sequence[str], before: Statuses) -> Look:
    """Observe the deployed processors now; ``before`` has the statuses of the previous observation, for rates."""
    # Imported late, because it loads the database library, which `--help` must not load.
    from holdfast.processors.lifecycle.recovery.incidents import observe

    try:
        incidents = tuple(each for each in registry.open_incidents() if not only or each.processor in only)
        chosen = [each for each in registry.deployments() if not only or each.processor in only]
    except HoldfastError as failed:
        return Look((), (), before, (failed.message,))
    rows: list[Row] = []
    statuses: dict[tuple[str, str], ProcessorStatus] = {}
    failures: list[str] = []
    world = look_at_all(world, chosen)
    for deployment in chosen:
        name = deployment.processor
        try:
            seen = observe(name, world, limits)
        except HoldfastError as failed:
            failures.append(f"{name}: {failed.message}")
            continue
        for slot, each in seen.items():
            rows.append(row_of(name, slot, each, before.get((name, slot)), down=deployment.desired == "stopped"))
            if isinstance(each.living, ProcessorStatus):
                statuses[name, slot] = each.living
    return Look(tuple(sorted(rows, key=_trouble)), incidents, statuses, tuple(failures))


def row_of(processor: str, slot: str, seen: Observation, before: ProcessorStatus | None, *, down: bool = False) -> Row:
    """Returns the table row of one worker; ``before`` is its previous status, from which the rate is computed."""
    status = seen.living
    if not isinstance(status, ProcessorStatus):
        return Row(processor, slot, "down" if down else seen.diagnosis.kind, seen.diagnosis.sentence)
    rate = _rate(before, status)
    restored, left = _restore(status.tasks)
    return Row(
        processor,
        slot,
        seen.diagnosis.kind,
        seen.diagnosis.sentence,
        phase=status.phase,
        paused=status.paused,
        tasks=len(status.tasks),
        tasks_running=sum(task.phase == "running" for task in status.tasks),
        lag=status.lag,
        records_per_s=rate,
        behind_s=round(status.lag / rate, 1) if status.lag and rate else None,
        restored=restored,
        restore_s_left=left,
    )


def _rate(before: ProcessorStatus | None, now: ProcessorStatus) -> float | None:
    if before is None or before.started_at != now.started_at or now.heartbeat_at <= before.heartbeat_at:
        return None
    processed = now.records.get("processed", 0) - before.records.get("processed", 0)
    return round(processed / (now.heartbeat_at - before.heartbeat_at), 1)


def _restore(tasks: Iterable[TaskStatus]) -> tuple[float | None, float | None]:
    """Progress of the slowest restore, from 0 to 1, and the estimated seconds until all restores end; None: unknown."""
    restores = [task.restore for task in tasks if task.restore is not None]
    if not restores:
        return None, None
    left = [each.get("seconds_left") for each in restores]
    gone = [each.get("seconds", 0.0) for each in restores]
    shares = [0.0 if rest is None else past / max(past + rest, 1e-9) for past, rest in zip(gone, left, strict=True)]
    known = [rest for rest in left if rest is not None]
    return round(min(shares), 3), max(known) if len(known) == len(left) else None


def _trouble(row: Row) -> tuple[int, int, str, str]:
    """Returns a sort key for rows: processors with a problem come first, and then the larger lag comes first."""
    order = {"healthy": 2, "starting": 1, "down": 3, "not-deployed": 3}.get(row.state, 0)
    return order, -(row.lag or 0), row.processor, row.slot


def document(look: Look) -> dict[str, object]:
    """The JSON document of one observation."""
    return {
        "processors": [asdict(row) for row in look.rows],
        "incidents": [{"id": each.id, "processor": each.processor, "kind": each.kind} for each in look.incidents],
        "failures": list(look.failures),
    }


def page(look: Look) -> RenderableType:
    """The page of one observation for the terminal: a table of workers, then open incidents and errors."""
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
