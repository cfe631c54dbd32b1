"""``holdfast history``: prints a processor's applies, incidents, rehearsals and Dagster runs, newest first.

Invariants:
    - This command only reads. Dagster need not run: without its webserver, runs are read from Dagster's database.
"""

from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.assets.layers import PROCESSOR_TAG
from holdfast.orchestration.commands.options import Json, Processor, command_settings, print_json, print_rows

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings
    from holdfast.orchestration.view.past_runs import PastRun
    from holdfast.processors.lifecycle.recovery.messages.timeline import Entry

#: Maximum number of Dagster's newest runs among which the runs of a processor are searched.
_RUNS_MAX = 1_000


def history(
    processor: Processor,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show only this many of the newest entries.")] = 30,
    as_json: Json = False,
) -> None:
    """List a processor's applies, incidents, rehearsals and Dagster runs, newest first."""
    found = entries(command_settings("ERROR"), processor, limit)
    if as_json:
        print_json([_document(each) for each in found])
        return
    rows = [
        {
            "at": f"{each.at:%Y-%m-%d %H:%M:%S}Z",
            "kind": each.kind,
            "outcome": each.outcome,
            "seconds": "" if each.seconds is None else f"{each.seconds:.1f}",
            "plan": each.plan,
            "what": each.text,
        }
        for each in found
    ]
    print_rows(tuple(rows[0]) if rows else (), rows, none=f"Nothing happened to {processor} yet.")


def entries(settings: "Settings", processor: str, limit: int) -> "list[Entry]":
    """At most ``limit`` entries of a processor's history, newest first.

    Raises:
        HoldfastError: The registry does not answer.
    """
    from holdfast.orchestration.view.past_runs import read_runs
    from holdfast.orchestration.world import open_registry
    from holdfast.processors.lifecycle.recovery.messages import timeline

    with closing(open_registry(settings)) as registry:
        applies = registry.journal.applies(limit, processor=processor)
        incidents = registry.incidents(limit, processor=processor)
        actions = [each for each in registry.actions(_RUNS_MAX) if each.subject == processor]
    found = [entry for each in applies for entry in timeline.of_apply(each)]
    found += [entry for each in incidents for entry in timeline.of_incident(each)]
    found += [entry for each in actions for entry in timeline.of_action(each)]
    found += [_of_run(each, processor) for each in read_runs(settings, _RUNS_MAX) if is_about(each, processor)]
    return sorted(found, key=lambda each: (each.at, each.identity), reverse=True)[:limit]


def _document(entry: "Entry") -> dict[str, Any]:
    document = asdict(entry)
    return {name: document[name] for name in _FIELDS} | {"run": entry.run or None}


#: The fields of an entry that are in the JSON document, in addition to ``run``.
_FIELDS = ("at", "kind", "outcome", "text", "who", "plan", "seconds", "stores", "details")


def is_about(run: "PastRun", processor: str) -> bool:
    """Whether a Dagster run has the processor's tag, or selects an asset or an asset check of the processor."""
    selected = (*run.assets, *(path for path, _ in run.checks))
    return run.tags.get(PROCESSOR_TAG) == processor or any(path[1:2] == (processor,) for path in selected)


def _of_run(run: "PastRun", processor: str) -> "Entry":
    from holdfast.assets.launched_by import actor_of
    from holdfast.processors.lifecycle.recovery.messages.timeline import Entry

    selected = sorted({path[-1] for path in run.assets})
    checked = sorted({f"{path[-1]}:{name}" for path, name in run.checks})
    what = ", ".join(selected or checked) if run.job.startswith("__") else run.job
    began, ended = run.started_at, run.ended_at
    return Entry(
        identity=f"run-{run.run_id}",
        processor=processor,
        kind="run",
        text=f"Run {run.run_id[:8]} of {what}: {run.status}.",
        at=datetime.fromtimestamp(run.created_at if began is None else began, UTC),
        outcome=run.status,
        who=actor_of(run),
        seconds=None if began is None or ended is None else ended - began,
    )
