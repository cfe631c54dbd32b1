"""Which tags a run gets in Dagster's queue, and which queued runs Dagster's daemon may then start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.run_coordinator import SubmitRunContext
from dagster._core.storage.dagster_run import RunOpConcurrency
from dagster._daemon import sensor as sensor_daemon
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from holdfast.assets import keys
from holdfast.infra.settings import PROJECT
from holdfast.orchestration.host.run_coordinator import (
    CHANGES_TAG,
    KIND_TAG,
    QUEUE_TAG,
    RECOVERY,
    ProcessorRunCoordinator,
    lane_of,
    processor_of,
    tags_of,
)
from holdfast.orchestration.host.run_launcher import NAMED_WITHIN_S
from holdfast.orchestration.jobs.lifecycle_verbs import VERB_JOBS
from holdfast.orchestration.jobs.recover_processor import recover_processor
from holdfast.orchestration.sensors.recovery import RECOVERY_EVERY_S

#: The origin that a code server would load the job from. No server is started here.
CODE = JobPythonOrigin("stop_processor", RepositoryPythonOrigin("python", ModuleCodePointer("none", "none")))


def of_op(**config: Any) -> dict[str, Any]:
    return {"ops": {"any_one": {"config": config}}}


@pytest.mark.parametrize(
    ("job", "config", "assets", "expected"),
    [
        (RECOVERY, of_op(processor="fleet"), [], "fleet"),
        ("clear_state", of_op(processor="fleet", dry_run=False), [], "fleet"),
        ("clear_state", of_op(processor="fleet", dry_run=True), [], ""),
        ("clear_state", of_op(processor="fleet"), [], ""),
        ("rehearse_restore", of_op(processor="fleet"), [], ""),
        ("archive_orphans", of_op(dry_run=False), [], ""),
        ("__ASSET_JOB", {}, [keys.processor_key("fleet")], "fleet"),
        ("__ASSET_JOB", {}, [keys.changelog_key("fleet", "a"), keys.processor_key("fleet")], "fleet"),
        ("__ASSET_JOB", {}, [keys.processor_key("fleet"), keys.processor_key("routes")], ""),
        ("__ASSET_JOB", {}, [keys.state_key("fleet", "a"), keys.snapshot_key("fleet", "a"), keys.orphans_key()], ""),
        ("__ASSET_JOB", {"ops": {"any": None}}, [keys.topic_key("flights"), keys.broken_key("a:b")], ""),
    ],
)
def test_a_run_that_changes_one_processor_has_its_name(
    job: str, config: dict[str, Any], assets: list[dg.AssetKey], expected: str
) -> None:
    assert processor_of(job, config, assets) == expected


def test_the_jobs_have_the_names_that_the_queue_looks_for() -> None:
    assert recover_processor.name == RECOVERY
    for job in VERB_JOBS:
        (op,) = job.nodes
        fields = op.definition.config_schema.config_type.fields  # type: ignore[union-attr]
        assert "dry_run" in fields
        assert ("processor" in fields) == (job.name != "archive_orphans")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster.yaml").write_text((files("holdfast.infra") / "dagster" / "local.yaml").read_text())
    with dg.DagsterInstance.from_config(str(tmp_path)) as opened:
        yield opened


QUEUED, STARTED = dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED


def run_of(job: str, pools: tuple[str, ...] = (), **config: Any) -> dg.DagsterRun:
    """A run of a job with the tags that its caller gives it."""
    location = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1)
    known = {each.name: each for each in (*VERB_JOBS, recover_processor)}
    needs = RunOpConcurrency(all_pools=set(pools), root_key_counts={}, has_unconstrained_root_nodes=False)
    return dg.DagsterRun(
        job_name=job,
        run_config=of_op(**config),
        tags={} if job not in known else dict(known[job].tags),
        remote_job_origin=RemoteJobOrigin(RemoteRepositoryOrigin(location, "holdfast"), job),
        job_code_origin=CODE,
        run_op_concurrency=needs if pools else None,
    )


def placed(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, *runs: dg.DagsterRun) -> list[str]:
    """Add runs in this state to the Dagster instance, with the tags that the queue gives them. Return their ids."""
    for run in runs:
        instance.add_run(run.with_status(status).with_tags({**run.tags, **tags_of(run)}))
    return [run.run_id for run in runs]


def next_ones(instance: dg.DagsterInstance) -> set[str]:
    """The ids of the runs that Dagster's daemon would start now."""
    daemon = QueuedRunCoordinatorDaemon(interval_seconds=1)
    found = daemon._get_runs_to_dequeue(instance, instance.get_concurrency_config(), fixed_iteration_time=None)
    return {run.run_id for run in found}


def test_our_queue_is_dagsters_with_the_tags(instance: dg.DagsterInstance) -> None:
    run = run_of("clear_state", processor="fleet", dry_run=False)
    instance.add_run(run)
    queued = instance.run_coordinator.submit_run(SubmitRunContext(run, workspace=None))  # type: ignore[arg-type]
    assert (queued.status, queued.tags["processor"]) == (dg.DagsterRunStatus.QUEUED, "fleet")
    assert (queued.tags[QUEUE_TAG], queued.tags[CHANGES_TAG]) == ("verb", "fleet")
    assert next_ones(instance) == {run.run_id}
    named = run_of("own_job").with_tags({"processor": "fleet"})
    assert tags_of(named) == {QUEUE_TAG: "shared", CHANGES_TAG: "fleet"}
    assert tags_of(run_of(RECOVERY, processor="fleet")) == {QUEUE_TAG: "recovery", "processor": "fleet"}


@pytest.mark.parametrize(
    ("job", "pools", "config", "lane"),
    [
        (RECOVERY, (), {"processor": "fleet"}, "recovery"),
        ("backfill_store", (), {"processor": "fleet"}, "urgent"),
        ("backfill_store", (), {"processor": "fleet", "dry_run": True}, "urgent"),
        ("backfill_store", (), {"processor": "fleet", "dry_run": False}, "long"),
        ("restore_state", (), {"processor": "fleet", "dry_run": False}, "long"),
        ("clear_state", (), {"processor": "fleet", "dry_run": False}, "verb"),
        ("stop_processor", (), {"processor": "fleet", "dry_run": False}, "urgent"),
        ("rollback_processor", (), {"processor": "fleet", "dry_run": False}, "urgent"),
        ("checkpoint_and_snapshot", ("spark",), {}, None),
        ("observe", (), {}, "shared"),
    ],
)
def test_each_run_has_its_lane(job: str, pools: tuple[str, ...], config: dict[str, Any], lane: str | None) -> None:
    is_verb = any(each.name == job and each.tags[KIND_TAG] == "lifecycle" for each in VERB_JOBS)
    assert lane_of(job, of_op(**config), pools, is_verb=is_verb) == lane


def test_no_verb_has_a_pool() -> None:
    """A pool counts dry runs as well. With a pool, a dry run would wait for hours behind a backfill."""
    for job in VERB_JOBS:
        (op,) = job.nodes
        assert not op.definition.pool  # type: ignore[union-attr]


def test_recovery_stop_and_dry_runs_start_while_every_queue_and_pool_is_full(instance: dg.DagsterInstance) -> None:
    """Recovery, stop, rollback and a dry run start, although all other queues and pools are full of endless runs.

    One of the endless runs changes the same processor.
    """
    acting = {"processor": "fleet", "dry_run": False}

    def full() -> list[dg.DagsterRun]:
        found = [run_of("observe") for _ in range(4)]
        found += [run_of(job, (pool,)) for job, pool in (("snapshots", "spark"), ("deploy", "deploys"))]
        found += [run_of("backfill_store", processor=f"p{number}", dry_run=False) for number in range(2)]
        found += [run_of("clear_state", processor=f"q{number}", dry_run=False) for number in range(3)]
        return [*found, run_of("compact_stores", **acting)]

    first = full()
    placed(instance, QUEUED, *first)
    assert next_ones(instance) == {run.run_id for run in first}
    placed(instance, STARTED, *full())
    assert next_ones(instance) == set()
    due = placed(
        instance,
        QUEUED,
        run_of(RECOVERY, processor="fleet"),
        run_of("stop_processor", **acting),
        run_of("rollback_processor", **acting),
        run_of("backfill_store", processor="fleet"),
    )
    assert next_ones(instance) == set(due)


def of_lane(lane: str, count: int) -> list[dg.DagsterRun]:
    """Return runs of other processors in one queue lane: "recovery", or "urgent" (dry runs, stop and rollback)."""
    if lane == "recovery":
        return [run_of(RECOVERY, processor=f"r{number}") for number in range(count)]
    return [run_of("backfill_store", processor=f"u{number}", dry_run=True) for number in range(count)]


@pytest.mark.parametrize("full", ["urgent", "recovery"])
def test_a_full_lane_of_urgent_runs_keeps_no_recovery_waiting_nor_the_other_way_round(
    instance: dg.DagsterInstance, full: str
) -> None:
    """If one of the two lanes (recovery, urgent) is full, a run of the other lane still starts at once."""
    queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None
    limits = {str(each["value"]): each["limit"] for each in queue.tag_concurrency_limits}
    other = "recovery" if full == "urgent" else "urgent"
    for lane, count in ((full, limits[full]), (other, limits[other] - 1)):
        placed(instance, STARTED, *of_lane(lane, count))
    placed(instance, QUEUED, *of_lane(full, 1))
    assert next_ones(instance) == set(), "the lane is full"
    due = {
        "recovery": [run_of(RECOVERY, processor="fleet")],
        "urgent": [run_of("stop_processor", processor="fleet", dry_run=False)],
    }
    assert next_ones(instance) == set()
    assert set(placed(instance, QUEUED, *due[other])) == next_ones(instance)


def test_recovery_begins_within_the_time_that_the_documentation_promises(instance: dg.DagsterInstance) -> None:
    """The longest delay from a kill to the start of its recovery is within the time that docs/recovery.md promises.

    The delay is the wait for the sensor's tick, then for the queue, then for the start of the run's process.
    """
    coordinator = instance.run_coordinator
    assert isinstance(coordinator, ProcessorRunCoordinator)
    tick_s = RECOVERY_EVERY_S + sensor_daemon.MIN_INTERVAL_LOOP_TIME
    begins_s = tick_s + coordinator.dequeue_interval_seconds + NAMED_WITHIN_S
    promised = re.search(r"begins within (\d+) s of a kill", (PROJECT / "docs" / "recovery.md").read_text())
    assert promised is not None
    assert begins_s <= float(promised[1])


def test_one_run_at_a_time_changes_a_processor(instance: dg.DagsterInstance) -> None:
    of_fleet = [run_of("clear_state", processor="fleet", dry_run=False) for _ in range(2)]
    other = run_of("clear_state", processor="routes", dry_run=False)
    placed(instance, QUEUED, *of_fleet, other)
    assert next_ones(instance) == {of_fleet[0].run_id, other.run_id}
    placed(instance, STARTED, run_of("backfill_store", processor="fleet", dry_run=False))
    assert next_ones(instance) == {other.run_id}


def test_runs_that_wait_for_a_pool_keep_no_others_waiting(instance: dg.DagsterInstance) -> None:
    (first,) = placed(instance, QUEUED, run_of("snapshots", ("spark",)))
    assert next_ones(instance) == {first}
    placed(instance, STARTED, run_of("snapshots", ("spark",)))
    placed(instance, QUEUED, *(run_of("snapshots", ("spark",)) for _ in range(6)))
    shared = placed(instance, QUEUED, run_of("observe"))
    assert next_ones(instance) == set(shared)


def test_runs_are_launched_side_by_side(instance: dg.DagsterInstance) -> None:
    """Runs are launched in parallel. A launch waits until its run has recorded its process.

    Recoveries of other processors must not wait for that.
    """
    coordinator = instance.run_coordinator
    assert isinstance(coordinator, ProcessorRunCoordinator)
    assert (coordinator.dequeue_use_threads, coordinator.dequeue_num_workers) == (True, 4)
