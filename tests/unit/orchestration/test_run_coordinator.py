"""Which runs get the tag of a processor, and that Dagster's queue gives it."""

from __future__ import annotations

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

from holdfast.assets import keys
from holdfast.orchestration.jobs.lifecycle_verbs import VERB_JOBS
from holdfast.orchestration.jobs.recover_processor import recover_processor
from holdfast.orchestration.run_coordinator import RECOVERY, ProcessorRunCoordinator, processor_of

#: Where a code server would load the job from; no server is started here.
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


def test_our_queue_is_dagsters_with_the_tag(instance: dg.DagsterInstance) -> None:
    job = next(each for each in VERB_JOBS if each.name == "stop_processor")
    config = {"ops": {"stop_one": {"config": {"processor": "fleet", "dry_run": False}}}}
    location = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1)
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, "holdfast"), job.name)
    run = instance.create_run_for_job(job, run_config=config, remote_job_origin=origin, job_code_origin=CODE)
    queued = instance.run_coordinator.submit_run(SubmitRunContext(run, workspace=None))  # type: ignore[arg-type]
    assert (queued.status, queued.tags["processor"]) == (dg.DagsterRunStatus.QUEUED, "fleet")
    (limit,) = instance.get_concurrency_config().run_queue_config.tag_concurrency_limits  # type: ignore[union-attr]
    assert limit["key"] == keys.PROCESSOR_TAG


def test_runs_are_launched_side_by_side(instance: dg.DagsterInstance) -> None:
    """A launch waits until its run names its process; recoveries of other processors must not wait for that."""
    coordinator = instance.run_coordinator
    assert isinstance(coordinator, ProcessorRunCoordinator)
    assert (coordinator.dequeue_use_threads, coordinator.dequeue_num_workers) == (True, 4)
