"""Reads Dagster's newest runs, for ``holdfast history``.

Invariants:
    - The webserver of this home is asked first, because importing Dagster takes two seconds of CPU. Without an answer,
      Dagster's database is read, so Dagster need not run.
    - Both ways give equal runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.infra.settings import Settings
from holdfast.orchestration.view.webserver import NoAnswer, ask

if TYPE_CHECKING:
    import dagster as dg

_QUERY = """query NewestRuns($limit: Int!) { runsOrError(limit: $limit) { ... on Runs { results {
  runId status jobName creationTime startTime endTime tags { key value }
  assetSelection { path } assetCheckSelection { name assetKey { path } }
} } } }"""
#: Prefix of the tags that Dagster uses itself and never shows.
_HIDDEN = ".dagster/"


@dataclass(frozen=True, slots=True)
class PastRun:
    """One Dagster run. Times are in seconds since 1970; ``status`` is Dagster's status in lower case."""

    run_id: str
    status: str
    job: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    tags: Mapping[str, str]
    #: The paths of the asset keys that the run selects.
    assets: tuple[tuple[str, ...], ...]
    #: The asset checks that the run selects: the path of the asset key, and the check's name.
    checks: tuple[tuple[tuple[str, ...], str], ...]


def read_runs(settings: Settings, limit: int) -> tuple[PastRun, ...]:
    """The newest ``limit`` runs, newest first; empty if Dagster is not installed or never ran here."""
    home = settings.paths.dagster
    if not (home / "dagster.yaml").is_file():
        return ()
    try:
        return tuple(map(_answered, ask(settings, _QUERY, limit=limit)["runsOrError"]["results"]))
    except (NoAnswer, KeyError, TypeError):
        pass  # no webserver answers, or its version of Dagster has other fields
    try:
        import dagster as dg  # imported late, because importing Dagster takes a second
    except ModuleNotFoundError:
        return ()
    with dg.DagsterInstance.from_config(str(home)) as instance:
        return tuple(map(_recorded, instance.get_run_records(limit=limit)))


def _answered(run: Mapping[str, Any]) -> PastRun:
    return PastRun(
        run_id=run["runId"],
        status=run["status"].lower(),
        job=run["jobName"],
        created_at=run["creationTime"],
        started_at=run["startTime"],
        ended_at=run["endTime"],
        tags={each["key"]: each["value"] for each in run["tags"]},
        assets=tuple(sorted(tuple(key["path"]) for key in run["assetSelection"] or ())),
        checks=tuple(
            sorted((tuple(each["assetKey"]["path"]), each["name"]) for each in run["assetCheckSelection"] or ())
        ),
    )


def _recorded(record: "dg.RunRecord") -> PastRun:
    run = record.dagster_run
    return PastRun(
        run_id=run.run_id,
        status=run.status.value.lower(),
        job=run.job_name,
        created_at=record.create_timestamp.timestamp(),
        started_at=record.start_time,
        ended_at=record.end_time,
        tags={name: value for name, value in run.tags.items() if not name.startswith(_HIDDEN)},
        assets=tuple(sorted(tuple(key.path) for key in run.asset_selection or ())),
        checks=tuple(sorted((tuple(each.asset_key.path), each.name) for each in run.asset_check_selection or ())),
    )
