"""Maximum runtimes of Dagster runs by the run's kind, and the message for a run that was ended at its limit.

Dagster ends a run after the seconds in its tag ``dagster/max_runtime``. ``run_launcher`` sets this tag at the launch.
So runs that a person starts on an asset's page have the tag too.

Invariants:
    - All functions are pure; none reads Dagster's storage.
    - If a person set the tag ``dagster/max_runtime``, its value is kept.
"""

from collections.abc import Collection, Mapping
from typing import Literal

from dagster import AssetKey

from holdfast.infra.settings import RunSettings

Kind = Literal["snapshot", "verb", "recovery", "audit", "rehearsal", "maintenance", "upkeep", "other"]

#: Dagster's run tag with the maximum runtime of the run, seconds.
MAX_RUNTIME_TAG = "dagster/max_runtime"
#: The run tag with the kind of the run.
KIND_TAG = "holdfast/run-kind"
#: Tag of a run that was ended at its limit. The value is the number of seconds that it had run.
OVERDUE_TAG = "holdfast/ended-after"

_BY_JOB: Mapping[str, Kind] = {
    "checkpoint_and_snapshot": "snapshot",
    "provision_and_deploy": "verb",
    "recover_processor": "recovery",
    "compaction_checks": "audit",
    "orphan_checks": "audit",
    "rehearse_restore": "rehearsal",
    "maintain_warehouse": "maintenance",
    "upkeep": "upkeep",
}
#: First part (layer) of an asset's key -> the kind of run that materialises this asset.
_BY_LAYER: Mapping[str, Kind] = {
    "changelogs": "verb",
    "processors": "verb",
    "state": "snapshot",
    "warehouse": "snapshot",
}


def kind_of(job: str, tags: Mapping[str, str], assets: Collection[AssetKey], *, only_checks: bool) -> Kind:
    """The kind of a run, derived from its job, otherwise from the assets that it materialises.

    ``only_checks`` is whether the run executes asset checks and materialises nothing.
    """
    if job in _BY_JOB:
        return _BY_JOB[job]
    if tags.get("holdfast/kind") == "lifecycle":
        return "verb"
    if only_checks:
        return "audit"
    kinds = {_of_asset(key) for key in assets}
    # A run with assets of several kinds gets the kind with the longest default limit; the kinds are in this order.
    return next((kind for kind in ("verb", "snapshot", "maintenance") if kind in kinds), "other")


def limit_s(kind: Kind, settings: RunSettings) -> float:
    """Maximum runtime of a run of this kind, seconds."""
    return float(getattr(settings, f"{kind}_max_s"))


def new_tags(
    job: str, tags: Mapping[str, str], assets: Collection[AssetKey], settings: RunSettings, *, only_checks: bool
) -> dict[str, str]:
    """The tags to add to a run at its launch: its kind, and its maximum runtime unless that tag exists."""
    kind = kind_of(job, tags, assets, only_checks=only_checks)
    limit = {} if MAX_RUNTIME_TAG in tags else {MAX_RUNTIME_TAG: f"{limit_s(kind, settings):g}"}
    return {KIND_TAG: kind, **limit}


def overdue_s(tags: Mapping[str, str], started_at: float | None, now: float) -> float | None:
    """The runtime of a run that has exceeded its limit, seconds; None if the run is within its limit or has no limit.

    ``started_at`` and ``now`` are seconds since 1970.
    """
    try:
        limit = float(tags.get(MAX_RUNTIME_TAG, ""))
    except ValueError:
        return None
    if started_at is None or not 0 < limit < now - started_at:
        return None
    return now - started_at


def overdue_words(run_id: str, job: str, tags: Mapping[str, str]) -> str | None:
    """The message for a run that was ended at its limit, with the action for the user; None for other runs."""
    age = tags.get(OVERDUE_TAG)
    if age is None:
        return None
    kind = tags.get(KIND_TAG, "other")
    return (
        f"Run {run_id} of {job} was ended after {age} s: a run of kind {kind} may take {tags.get(MAX_RUNTIME_TAG)} s. "
        "Its process was ended, and its pool is free. What to do: read in the last lines of its log what it waited "
        f"for, repair that, and launch it again. If the work needs longer, raise `HOLDFAST_RUNS__{kind.upper()}_MAX_S`."
    )


def _of_asset(key: AssetKey) -> Kind:
    return "maintenance" if key.path[-1].endswith("_maintenance") else _BY_LAYER.get(key.path[0], "other")
