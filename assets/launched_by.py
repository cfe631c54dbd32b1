"""The person or schedule for whom a run acts, as the registry records it with each change."""

import dagster as dg

#: Dagster's tag with the person who launched a run or a backfill; the webserver sets it (``orchestration.host.front``).
USER_TAG = "user"
#: Dagster's tag of a backfill that was launched again: its other tags are those of the first one.
AGAIN_TAG = "dagster/parent_backfill_id"
#: Longest name that is recorded, characters.
NAME_MAX = 100


def actor_of(run: dg.DagsterRun) -> str:
    """The run; if the webserver knew the person who launched the run, that person's name comes first."""
    name = f"dagster run {run.run_id}"
    person = run.tags.get(USER_TAG, "")
    return f"{person[:NAME_MAX]}, {name}" if person and AGAIN_TAG not in run.tags else name
