"""Code versions of a processor are deployed with a real broker, supervisor and worker.

A version that fails is rolled back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from holdfast.assets.checks.proven import results_of
from holdfast.infra.database.registry import Registry
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.settings import PROJECT
from holdfast.orchestration.world import open_registry
from holdfast.processors.application.registration import ProcessorUnknown
from holdfast.processors.lifecycle.deploy.running import RollbackFailed, RolledBack
from holdfast.processors.lifecycle.plans.apply import ApplyInProgress
from holdfast.processors.lifecycle.plans.plan import NothingToDo
from holdfast.processors.lifecycle.plans.requests import Deploy
from holdfast.processors.proof.refusal import NotProven
from tests.kafka.conftest import wait_for
from tests.kafka.deploying.project import COUNTS, EXITS, FAILS_AT_SEVEN, HEAD, NEVER_READY, POISONED, Project
from tests.mechanics.tiers import variants


@pytest.mark.thorough
def test_a_version_is_recorded_copied_and_run_from_its_copy(project: Project) -> None:
    project.stream.feed_numbers(20, keys=2)
    version = project.deploy()
    assert project.running_version() == version
    (copied,) = (project.settings.paths.home / "releases" / project.stream.group).glob("*/*.py")
    assert copied.read_text() == project.path.read_text()
    assert copied.parent.name.startswith(version)
    assert isinstance(project.plan().verdict, NothingToDo)
    project.counted({b"k0": 10, b"k1": 10})

    # The project's files are deleted and the processor is killed. The supervisor restarts it from the release (the
    # deployed copy of the code).
    registry = open_registry(project.settings)
    (known,) = registry.releases.newest(project.stream.group)
    registry.close()
    assert (known.code_version, known.worked_at is not None) == (version, True)


@pytest.mark.thorough
def test_helpers_that_changed_are_another_release_of_the_same_version(project: Project) -> None:
    version = project.deploy()
    project.path.write_text(project.path.read_text() + "\n# a comment\n")
    sys.modules.pop(project.module, None)
    assert project.plan().changes
    assert project.deploy() == version
    releases = (project.settings.paths.home / "releases" / project.stream.group).glob(f"{version}-*")
    assert len([each for each in releases if each.is_dir()]) == 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("parts", "words", "timeout_s"),
    variants(
        [
            pytest.param((HEAD, POISONED), "no such field: speed", 60.0, id="fails on its first message"),
            pytest.param(
                (HEAD, EXITS, COUNTS),
                r"exit status 64(.|\n)*speed.yaml is not there",
                60.0,
                id="fails at its start",
            ),
            pytest.param((HEAD, NEVER_READY, COUNTS), "Not ready in time", 6.0, id="never becomes ready"),
        ]
    ),
)
def test_a_version_that_fails_is_rolled_back(
    project: Project, parts: tuple[str, ...], words: str, timeout_s: float
) -> None:
    project.stream.feed_numbers(20, keys=2)
    version = project.deploy()
    project.counted({b"k0": 10, b"k1": 10})
    changed = "\n# changed\n" if parts[1] is not POISONED else ""
    # no proof (trial run before the deploy), because it would find the fault before the version starts
    project.write(*parts, changed, options="prove=False,")
    if parts[1] is not POISONED:
        project.path.write_text(project.path.read_text().replace('state.get("n", 0) + 1', '1 + state.get("n", 0)'))
    else:
        with project.verbs() as verbs:
            # The first message arrives while no worker runs, so it waits for the new version.
            os.kill(project.client.status().pid, signal.SIGKILL)  # type: ignore[union-attr]
            project.stream.feed_numbers(20, keys=2)
            assert verbs.plan(Deploy(project.stream.group)).changes
    with pytest.raises(RolledBack, match=words) as failed:
        project.deploy(timeout_s=timeout_s)
    assert f"Version {version} was started again" in failed.value.message
    assert failed.value.fields["works"] == version
    assert project.running_version() == version
    assert project.outcomes() == ["failed", "done"]
    registry = open_registry(project.settings)
    deployment = registry.deployment(project.stream.group)
    registry.close()
    assert deployment is not None
    assert (deployment.code_version, deployment.desired) == (version, "deployed")
    if parts[1] is not POISONED:
        project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 20, b"k1": 20})

    # The corrected version is deployed and continues from the offsets of the former version.
    project.write(HEAD, COUNTS.replace("frame.to_topic", "frame = frame.update(print)\nframe.to_topic"))
    mended = project.deploy()
    assert mended != version
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 30, b"k1": 30})


@pytest.mark.thorough
def test_a_version_that_fails_on_the_last_messages_does_not_replace_the_running_one(project: Project) -> None:
    project.stream.feed_numbers(20, keys=2)
    version = project.deploy()
    project.counted({b"k0": 10, b"k1": 10})
    before = project.client.status()
    assert before is not None

    project.write(HEAD, FAILS_AT_SEVEN)
    with pytest.raises(NotProven, match="no such number: 7") as refused:
        project.deploy()
    fields = refused.value.fields
    topic = f"{project.stream.group}-in"
    place = Partition(str(fields["topic"]), int(str(fields["partition"])))
    (message,) = read_range(project.stream.bootstrap, topic, place.number, *_one(fields["offset"]))
    assert (place.topic, message.value) == (topic, b"7")
    assert f"Version {version} keeps running" in refused.value.message
    now = project.client.status()
    assert now is not None
    assert (now.pid, now.code_version, now.phase) == (before.pid, version, "running")
    assert project.outcomes() == ["failed", "done"]
    project.counted({b"k0": 10, b"k1": 10})  # the proof (trial run) wrote nothing to Kafka

    # An operator process that is killed during the proof (trial run) leaves the running version unchanged. It leaves no
    # process behind.
    project.write(HEAD, NEVER_READY, COUNTS.replace("frame.to_topic", "frame = frame.update(print)\nframe.to_topic"))
    operator = subprocess.Popen(
        [sys.executable, "-m", "holdfast.orchestration.cli", "apply", "deploy", project.stream.group],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": f"{PROJECT}:{os.environ['PYTHONPATH']}"},
    )
    proofs = project.settings.paths.releases(project.stream.group) / ".proof"
    wait_for(proofs.exists, "the proof")
    operator.kill()
    operator.wait()
    left = [path for path in proofs.rglob("*") if path.is_file() and path.stat().st_size]
    assert left == [], "neither messages nor state lie in a file"
    now = project.client.status()
    assert now is not None
    assert (now.pid, now.code_version) == (before.pid, version)

    # The corrected version passes its proof (trial run) and runs.
    project.write(HEAD, COUNTS.replace("frame.to_topic", "frame = frame.update(repr)\nframe.to_topic"))
    mended = project.deploy()
    assert project.running_version() == mended != version
    registry = open_registry(project.settings)
    result = proof_of(registry, project.stream.group, mended)
    assert result == f"version {mended} processed 20 messages, outputs: {project.stream.group}-out 20; none failed"
    registry.close()
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 20, b"k1": 20})


def proof_of(registry: Registry, processor: str, version: str) -> str:
    """Return the result that the proof (trial run before the deploy) of the running version has recorded."""
    working = registry.releases.working(processor)
    assert working is not None
    assert working.code_version == version
    found = results_of(registry.journal.applies(processor=processor), working.release_id)
    assert found is not None
    (result,) = found
    return result


def _one(offset: object) -> tuple[int, int]:
    """The range of offsets that contains only this offset."""
    return int(str(offset)), int(str(offset)) + 1


@pytest.mark.thorough
def test_without_input_a_version_is_not_proven(project: Project) -> None:
    project.deploy()
    project.write(HEAD, FAILS_AT_SEVEN)
    project.deploy()
    registry = open_registry(project.settings)
    result = proof_of(registry, project.stream.group, project.running_version())
    registry.close()
    assert result == "not proven: no input is committed that the topics still hold"


@pytest.mark.thorough
def test_a_first_version_that_fails_has_nothing_to_go_back_to(project: Project) -> None:
    project.write(HEAD, EXITS, COUNTS)
    with pytest.raises(RollbackFailed, match="There is no former version") as failed:
        project.deploy()
    assert "holdfast apply stop" in failed.value.action
    project.write(HEAD, COUNTS)
    assert project.deploy() == project.running_version()


@pytest.mark.thorough
def test_a_second_deployment_at_once_is_refused(project: Project) -> None:
    with project.verbs() as verbs:
        plan = verbs.plan(Deploy(project.stream.group))
        registry = open_registry(project.settings)
        from holdfast.processors.lifecycle.plans.plan import encode
        from holdfast.processors.lifecycle.ports import now_utc

        registry.journal.begin_apply(
            processor=plan.processor,
            verb=plan.verb,
            plan_hash=plan.hash,
            plan=encode(plan),
            who="grace",
            holder="elsewhere/1/1",
            now=now_utc(),
        )
        registry.close()
        with pytest.raises(ApplyInProgress, match="begun by grace"):
            verbs.apply(plan)


@pytest.mark.thorough
def test_a_definition_that_can_not_be_imported_is_told_with_its_line(project: Project) -> None:
    version = project.deploy()
    project.write(HEAD, "\nimport no_such_library\n", COUNTS)
    with pytest.raises(ProcessorUnknown, match=rf"{project.module}.py.*line 18(.|\n)*no_such_library"):
        project.plan()
    assert project.running_version() == version
