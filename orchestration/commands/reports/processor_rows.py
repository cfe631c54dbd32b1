"""The part of ``holdfast status`` about workers: one row for each slot (place of a worker), with a diagnosis.

Invariants:
    - Version, process, phase and times in a row come from the worker's own answer, never from Holdfast's registry (the
      database of deployments). Facts from the registry are in separate fields (``desired``, ``deployed_version``).
    - A processor whose status can't be read becomes one row and one red reason. All other processors are still shown.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from msgspec import to_builtins

from holdfast.infra.database.records import Deployment
from holdfast.infra.errors import HoldfastError
from holdfast.infra.log import get_logger
from holdfast.infra.settings.of_workers import shown
from holdfast.orchestration.view import reasons
from holdfast.orchestration.view.reasons import Reason
from holdfast.processors.engine.serving.parts import parts_of
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.health.arrivals import judge_arrivals
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.incidents import Observation, wanted
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import processor_now

log = get_logger(__name__)

#: Fields of a row that come from the answer of the slot's worker. They are None if the worker does not answer.
_OF_A_WORKER = (
    "code_version",
    "phase",
    "lag",
    "stream_time",
    "timers",
    "processed",
    "pid",
    "started_at",
    "uptime_s",
    "settings",
)


def describe_processor(
    deployment: Deployment, world: World, limits: Limits
) -> tuple[list[dict[str, Any]], list[Reason]]:
    """The rows of a processor, one for each slot (place of a worker), and the reasons why it is not green."""
    name = deployment.processor
    try:
        now = processor_now(name, world, limits)
        meant = wanted(deployment, world).desired
        rows = [_row_of(deployment, meant, slot, each, world) for slot, each in now.observations.items()]
        return rows, reasons.of_processor(name, now.answer)
    except Exception as failed:  # An error about one processor must not hide the rows of other processors.
        log.error("status.unread", processor=name, error=str(failed))
        why = failed.message if isinstance(failed, HoldfastError) else f"{type(failed).__name__}: {failed}"
        action = failed.action if isinstance(failed, HoldfastError) else f"Read `holdfast logs {name}`."
        row = bare_row(name, "unknown", f"Its state can't be read. {why}")
        row |= {"desired": deployment.desired, "deployed_version": deployment.code_version}
        return [row], [Reason(f"processor {name}", "red", row["sentence"], action)]


def bare_row(processor: str, diagnosis: str, sentence: str) -> dict[str, Any]:
    """A row for a processor about which only a diagnosis and a sentence are known; all other fields are None."""
    unknown = dict.fromkeys(("slot", "deployed_version", *_OF_A_WORKER))
    known = {"processor": processor, "desired": "-", "diagnosis": diagnosis, "sentence": sentence, "paused": False}
    return {**unknown, **known, "subtopologies": [], "warnings": [], "arrivals": None}


def subtopologies_of(worker: object) -> list[dict[str, Any]]:
    """The subtopologies in a worker's status, as JSON-ready data; empty if the worker gave no status."""
    if not isinstance(worker, ProcessorStatus):
        return []
    lists = ("awaited", "partitions")
    return [
        {**asdict(each), **{name: list(getattr(each, name)) for name in lists}, "lag": each.lag}
        for each in parts_of([worker])
    ]


def arrivals_of(worker: ProcessorStatus, world: World) -> dict[str, Any] | None:
    """Counts of a worker's messages that were too late, became dead letters or were skipped; None if all are 0."""
    judged = judge_arrivals(worker.processor, [worker], world.clock().timestamp())
    if judged is None or not judged.counts.total:
        return None
    counts = to_builtins(judged.counts)
    return {**counts, "per_minute": judged.per_minute, "sentence": judged.sentence, "action": judged.action or None}


def _row_of(deployment: Deployment, meant: str, slot: str, seen: Observation, world: World) -> dict[str, Any]:
    row = bare_row(deployment.processor, seen.diagnosis.kind, seen.diagnosis.sentence)
    row |= {"slot": slot, "desired": meant, "deployed_version": deployment.code_version}
    worker = seen.living
    if worker is None:
        return row
    row |= {"code_version": worker.code_version or None, "phase": worker.phase, "paused": worker.paused}
    row |= {"pid": worker.pid, "started_at": worker.started_at}
    settings = DeployedSettings(world.paths).of_worker(deployment.processor, slot, worker.pid)
    row["settings"] = None if settings is None else shown(settings)
    row["uptime_s"] = round(max(0.0, world.clock().timestamp() - worker.started_at), 1)
    timers = worker.timers
    row |= {"lag": worker.lag, "stream_time": worker.stream_time}
    # The field ``timers`` gets no schedules, because the field ``subtopologies`` contains the schedules.
    row["timers"] = None if timers is None else {k: v for k, v in asdict(timers).items() if k != "schedules"}
    row["subtopologies"] = subtopologies_of(worker)
    row["arrivals"] = arrivals_of(worker, world)
    return row | {"processed": worker.records.get("processed"), "warnings": list(worker.warnings)}
