"""The time limit of a run by its kind, and the message of a run that reached it: decisions only, without Dagster."""

from __future__ import annotations

import pytest
from dagster import AssetKey

from holdfast.assets import keys
from holdfast.infra.settings import RunSettings
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.host.run_time_limits import kind_of, limit_s, new_tags, overdue_s, overdue_words

LIMITS = RunSettings(snapshot_max_s=60, verb_max_s=120)
STATE, TABLE = keys.state_key("fleet", "seen"), keys.snapshot_key("fleet", "seen")
CHANGELOG, UPKEEP = keys.changelog_key("fleet", "seen"), keys.maintenance_key("fleet", "seen")
#: The name of Dagster's built-in job for runs that are launched from an asset's page.
OF_ASSETS = "__ASSET_JOB"


@pytest.mark.parametrize(
    ("job", "tags", "assets", "only_checks", "kind"),
    [
        ("checkpoint_and_snapshot", {}, [], False, "snapshot"),
        ("recover_processor", {}, [], False, "recovery"),
        ("clear_state", {"holdfast/kind": "lifecycle"}, [], False, "verb"),
        ("feed_flights", {"holdfast/kind": "feed"}, [], False, "other"),
        (OF_ASSETS, {}, [STATE, TABLE], False, "snapshot"),
        (OF_ASSETS, {}, [UPKEEP], False, "maintenance"),
        (OF_ASSETS, {}, [UPKEEP, TABLE], False, "snapshot"),
        (OF_ASSETS, {}, [STATE, CHANGELOG], False, "verb"),
        (OF_ASSETS, {}, [], True, "audit"),
        (OF_ASSETS, {}, [AssetKey(["elsewhere"])], False, "other"),
    ],
)
def test_a_run_has_a_kind(job: str, tags: dict[str, str], assets: list[AssetKey], only_checks: bool, kind: str) -> None:
    assert kind_of(job, tags, assets, only_checks=only_checks) == kind


def test_every_job_of_ours_has_a_kind_of_its_own() -> None:
    """A job without a kind would silently get the longest limit. Only the demo's feed may have none."""
    from holdfast.infra.settings import load_settings

    jobs = build_definitions(load_settings()).resolve_all_job_defs()
    others = {job.name for job in jobs if kind_of(job.name, job.tags, (), only_checks=False) == "other"}
    assert others == {"feed_flights", OF_ASSETS}


def test_a_run_gets_the_limit_of_its_kind_unless_it_has_one() -> None:
    tags = new_tags(OF_ASSETS, {}, [STATE], LIMITS, only_checks=False)
    assert tags == {"holdfast/run-kind": "snapshot", "dagster/max_runtime": "60"}
    own = new_tags(OF_ASSETS, {"dagster/max_runtime": "7"}, [STATE], LIMITS, only_checks=False)
    assert own == {"holdfast/run-kind": "snapshot"}
    assert limit_s("verb", LIMITS) == 120


@pytest.mark.parametrize(
    ("limit", "started_at", "age"),
    [("60", 0.0, 100.0), ("60", 50.0, None), ("60", None, None), ("0", 0.0, None), ("long", 0.0, None)],
)
def test_a_run_is_overdue_after_its_limit(limit: str, started_at: float | None, age: float | None) -> None:
    assert overdue_s({"dagster/max_runtime": limit}, started_at, 100.0) == age


def test_a_run_that_was_ended_is_told_with_its_id_kind_age_and_setting() -> None:
    tags = {"holdfast/run-kind": "snapshot", "dagster/max_runtime": "60", "holdfast/ended-after": "63"}
    words = overdue_words("4f2a", "checkpoint_and_snapshot", tags) or ""
    for said in ("4f2a", "checkpoint_and_snapshot", "kind snapshot", "63 s", "60 s", "HOLDFAST_RUNS__SNAPSHOT_MAX_S"):
        assert said in words
    assert overdue_words("4f2a", "checkpoint_and_snapshot", {}) is None
