"""Which name is recorded as the author of a change, if a Dagster run makes the change."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._core.storage.tags import PARENT_BACKFILL_ID_TAG, USER_TAG

from holdfast.assets import launched_by
from holdfast.assets.launched_by import actor_of


def run(**tags: str) -> dg.DagsterRun:
    return dg.DagsterRun(job_name="stop_processor", run_id="7", tags=tags)


@pytest.mark.parametrize(
    ("tags", "actor"),
    [
        ({}, "dagster run 7"),
        ({"user": ""}, "dagster run 7"),
        ({"user": "anna"}, "anna, dagster run 7"),
        ({"user": "anna", "dagster/parent_backfill_id": "x"}, "dagster run 7"),
        ({"user": "a" * 300}, f"{'a' * 100}, dagster run 7"),
    ],
)
def test_the_person_stands_in_front_of_the_run(tags: dict[str, str], actor: str) -> None:
    assert actor_of(run(**tags)) == actor


def test_the_tags_are_dagsters() -> None:
    assert (launched_by.USER_TAG, launched_by.AGAIN_TAG) == (USER_TAG, PARENT_BACKFILL_ID_TAG)
