"""A lost changelog is written again from local state, but the store's checkpoints still belong to the former changelog.

So a snapshot of these checkpoints is refused until a new checkpoint is taken.
"""

from __future__ import annotations

import pytest

from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.catalog import read_table
from holdfast.orchestration.verbs import open_verbs
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.plans.requests import Backfill, Deploy, Stop
from tests.dagster.test_assets_state import feed, group, settings, wait_processed
from tests.dagster.test_snapshot_assets import Control, control

__all__ = ["control", "group", "settings"]


@pytest.mark.thorough
def test_a_snapshot_of_checkpoints_of_a_former_changelog_is_refused_and_its_action_ends_that(
    control: Control, settings: Settings, group: str, broker: str
) -> None:
    client = ProcessorClient(group, "0", settings.paths)
    feed(broker, f"{group}-in", 100)
    wait_processed(client, 100)
    assert control.run(control.state, control.snapshot).success
    with open_verbs(settings, who="a test") as verbs:
        verbs.apply(verbs.plan(Stop(group)))
        Topics(broker).delete(f"{group}-counts-changelog")
        plan = verbs.plan(Backfill(group, "counts", "local"))
        verbs.apply(plan, confirmed=plan.hash)
        plan = verbs.plan(Deploy(group))
        if plan.changes:
            verbs.apply(plan, confirmed=plan.hash)
    feed(broker, f"{group}-in", 10)
    wait_processed(client, 10)  # wait until the restarted worker has processed these messages
    refused = control.run(control.snapshot)
    assert not refused.success
    (failed,) = [event for event in refused.all_events if event.is_step_failure]
    told = failed.step_failure_data.error.to_string()
    assert "belong to a former changelog" in told
    assert "Materialise the store's state asset, which takes a checkpoint; then materialise its snapshot asset." in told
    assert control.run(control.state).success
    assert control.run(control.snapshot).success
    assert control.metadata()["snapshot_rows"] == 7
    generations = read_table(settings.paths, group, "_snapshots").to_pydict()["generation"]
    assert sorted(set(generations)) == [1, 2]
