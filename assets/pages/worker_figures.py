"""Metadata of a running processor's observations: numbers that Dagster plots, and one row for each worker.

Invariants:
    - A number has the same name in observations and in materialisations, so that Dagster plots both as one line.
    - A number that a worker does not report is left out, never shown as zero.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from holdfast.assets.pages.metadata import table
from holdfast.infra.paths import Paths
from holdfast.processors.engine.serving.parts import PartStatus, parts_of
from holdfast.processors.engine.serving.status import ProcessorStatus

MIB = 1024 * 1024
_COLUMNS = ("slot", "phase", "tasks", "lag_records", "records", "commits", "commit_ms", "memory_mib", "pid", "log")


def facts_of(statuses: Sequence[ProcessorStatus], before: Any) -> tuple[dict[str, int | float], dict[str, Any]]:
    """Returns the numbers of this observation, and the values from which the next observation computes rates.

    ``before`` has the values that this function returned for the last observation, as the second result.
    """
    tasks = [task for status in statuses for task in status.tasks]
    processed = sum(status.records.get("processed", 0) for status in statuses)
    commits = sum(status.commits.get("count", 0) for status in statuses)
    facts: dict[str, int | float] = {
        "instances": len(statuses),
        "tasks_running": sum(task.phase == "running" for task in tasks),
        "records_processed": processed,
        "commits": commits,
        "commits_aborted": sum(status.commits.get("aborted", 0) for status in statuses),
        **_checkpoints(statuses),
    }
    last_ms = [ms for status in statuses if (ms := status.commits.get("last_ms")) is not None]
    if last_ms:
        facts["commit_ms"] = max(last_ms)
    memory = [status.memory_mib for status in statuses if status.memory_mib is not None]
    if memory and len(memory) == len(statuses):
        facts["memory_mib"] = round(sum(memory), 1)
    lags = [at.lag for task in tasks for at in task.inputs.values()]
    known = [lag for lag in lags if lag is not None]
    if lags and len(known) == len(lags):
        facts["lag_records"] = sum(known)
    at = max((status.heartbeat_at for status in statuses), default=0.0)
    # A rate is the difference of two totals. So rates are computed only if no worker was started since the last
    # observation.
    started = sorted(status.started_at for status in statuses)
    if before and before.get("started") == started and at > before.get("at", at):
        seconds = at - before["at"]
        facts["records_per_s"] = round((processed - before["processed"]) / seconds, 2)
        facts["commits_per_s"] = round(max(0, commits - before.get("commits", commits)) / seconds, 3)
    return facts, {"processed": processed, "at": at, "started": started}


def details_of(processor: str, statuses: Sequence[ProcessorStatus], paths: Paths) -> Mapping[str, dg.MetadataValue]:
    """A table of the live workers, and the path of each worker's log.

    If the processor has several subtopologies, they are listed in a second table.
    """
    rows = [
        {
            "slot": status.slot,
            "phase": f"{status.phase}, paused" if status.paused else status.phase,
            "tasks": len(status.tasks),
            "lag_records": _text(status.lag),
            "records": status.records.get("processed", 0),
            "commits": status.commits.get("count", 0),
            "commit_ms": _text(status.commits.get("last_ms")),
            "memory_mib": _text(status.memory_mib),
            "pid": status.pid,
            "log": str(paths.program_log(processor, status.slot)),
        }
        for status in statuses
    ]
    logs = {f"log_{row['slot']}": dg.MetadataValue.path(str(row["log"])) for row in rows}
    parts = parts_of(statuses)
    shown = {} if len(parts) < 2 else {"subtopologies": table([_part(each) for each in parts])}
    return {"workers": table(rows, _COLUMNS), **shown, **logs}


def _part(part: PartStatus) -> dict[str, Any]:
    inputs = ", ".join(f"{topic} {_text(lag) or 'unknown'}" for topic, lag in part.lags.items())
    return {
        "subtopology": part.subtopology,
        "tasks": part.tasks,
        "running": part.running,
        "lag_records": _text(part.lag),
        "lag_by_input": inputs,
        "waits_for": ", ".join(part.awaited),
    }


def _checkpoints(statuses: Sequence[ProcessorStatus]) -> dict[str, int | float]:
    kept = [status.checkpoints for status in statuses if status.checkpoints is not None]
    if not kept:
        return {}
    last = [task for each in kept for task in each["tasks"].values()]
    return {
        "checkpoints_stored": sum(each["uploads"] for each in kept),
        "checkpoint_seconds": max((task["seconds"] for task in last), default=0.0),
        "checkpoint_mib": round(sum(task["bytes"] for task in last) / MIB, 3),
    }


def _text(number: float | None) -> str:
    return "" if number is None else f"{number:g}"
