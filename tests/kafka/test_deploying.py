"""Deploying versions of a processor: real broker, supervisor and worker; what fails is rolled back by itself."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.assets.checks.proven import results_of
from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.kafka.reader import read_range
from holdfast.infra.kafka.records import Partition, TopicSpec
from holdfast.infra.settings import PROJECT, Settings, load_settings
from holdfast.orchestration.cli import main
from holdfast.orchestration.verbs import Verbs, open_verbs
from holdfast.orchestration.world import open_registry
from holdfast.processors.application.registration import ProcessorUnknown
from holdfast.processors.engine.serving.client import ProcessorClient
from holdfast.processors.lifecycle.deploy.running import RollbackFailed, RolledBack
from holdfast.processors.lifecycle.plans.apply import ApplyInProgress, PlanRefused, PlanStale
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Refused
from holdfast.processors.lifecycle.plans.requests import Deploy
from holdfast.processors.proof.verdict import NotProven
from tests.kafka.conftest import Stream, wait_for
from tests.mechanics.json_answers import compare
from tests.mechanics.tiers import variants
from tests.parts.operated import Killed

HEAD = """
import sys
import time

from holdfast import Application

DEPLOYED = "--release" in sys.argv

application = Application(
    consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.1,
    consumer_extra_config={{"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}}, {options}
)

def count(value, state):
    state.set("n", state.get("n", 0) + 1)
    return state.get("n")
"""
COUNTS = """
frame = application.dataframe(application.topic("{group}-in"))
frame = frame.apply(count, stateful=True, store="{store}")
frame.to_topic(application.topic("{group}-out"))
"""
POISONED = """
def poison(value):
    raise ValueError("no such field: speed")

frame = application.dataframe(application.topic("{group}-in"))
frame = frame.apply(poison).apply(count, stateful=True, store="{store}")
frame.to_topic(application.topic("{group}-out"))
"""
EXITS = """
if DEPLOYED:
    print("speed.yaml is not there", flush=True)
    sys.exit(64)
"""
NEVER_READY = """
if DEPLOYED:
    time.sleep(3600)
"""
TWO_STORES = (
    COUNTS
    + """
def length(value, state):
    state.set("length", state.get("length", 0) + 1)
    return value

frame.apply(length, stateful=True, store="lengths")
"""
)
JOINED = (
    COUNTS
    + """
def both(value, state):
    state.set("n", state.get("n", 0) + 1)
    return value

frame.apply(both, stateful=True, store="both")
application.dataframe(application.topic("{group}-paid")).apply(both, stateful=True, store="both")
"""
)


class Project:
    """A user's project: one module, and the verbs as a new process would see them."""

    def __init__(self, stream: Stream, folder: Path, settings: Settings) -> None:
        self.stream, self.folder, self.settings = stream, folder, settings
        self.module = f"definition_{stream.group.replace('-', '_')}"
        self.path = folder / f"{self.module}.py"

    def write(self, *parts: str, store: str = "counts", options: str = "") -> None:
        text = "".join(part.format(group=self.stream.group, store=store, options=options) for part in parts)
        self.path.write_text(text)
        sys.modules.pop(self.module, None)

    @contextmanager
    def verbs(self) -> Iterator[Verbs]:
        with open_verbs(self.settings, who="ada") as verbs:
            yield verbs

    def plan(self, **request: object) -> Plan:
        with self.verbs() as verbs:
            return verbs.plan(Deploy(self.stream.group, **request))  # type: ignore[arg-type]

    def deploy(self, tell: Callable[[str], None] = lambda text: None, **request: object) -> str:
        with self.verbs() as verbs:
            plan = verbs.plan(Deploy(self.stream.group, **request))  # type: ignore[arg-type]
            verbs.apply(plan, sure=True, tell=tell)
            return verbs.definition(self.stream.group).topology.code_version

    @property
    def client(self) -> ProcessorClient:
        return ProcessorClient(self.stream.group, "0", self.settings.paths)

    def running_version(self) -> str:
        status = self.client.status()
        assert status is not None
        assert status.phase == "running"
        return status.code_version

    def outcomes(self) -> list[str | None]:
        registry = open_registry(self.settings)
        try:
            return [each.outcome for each in registry.journal.applies(processor=self.stream.group)]
        finally:
            registry.close()

    def counted(self, expected: dict[bytes, int]) -> None:
        """Every message was counted once, whatever happened between them."""
        wait_for(lambda: self.stream.counts() == expected, f"counts of {expected}")
        self.stream.outputs_are_exact(expected)


@pytest.fixture
def project(stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", stream.bootstrap)
    made = f"definition_{stream.group.replace('-', '_')}"
    monkeypatch.setenv("HOLDFAST_PROCESSORS", json.dumps([f"{made}:application"]))
    project = Project(stream, folder, load_settings())
    project.write(HEAD, COUNTS)
    yield project
    if project.settings.paths.supervisor.is_dir():
        Supervisord(project.settings.paths).stop()
    sys.modules.pop(project.module, None)


def test_a_version_is_recorded_copied_and_run_from_its_copy(project: Project) -> None:
    project.stream.feed_numbers(20, keys=2)
    version = project.deploy()
    assert project.running_version() == version
    (copied,) = (project.settings.paths.home / "releases" / project.stream.group).glob("*/*.py")
    assert copied.read_text() == project.path.read_text()
    assert copied.parent.name.startswith(version)
    assert isinstance(project.plan().verdict, NothingToDo)
    project.counted({b"k0": 10, b"k1": 10})

    # The files are gone, and the processor is killed: it comes back from its copy.
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
    releases = (project.settings.paths.home / "releases" / project.stream.group).iterdir()
    assert len([each for each in releases if each.is_dir()]) == 2


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
    project.write(*parts, changed, options="prove=False,")  # a proof would find it before it is started
    if parts[1] is not POISONED:
        project.path.write_text(project.path.read_text().replace('state.get("n", 0) + 1', '1 + state.get("n", 0)'))
    else:
        with project.verbs() as verbs:
            # Its first message comes while nobody works: it is there when the new version starts.
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

    # Mended, it is deployed, and goes on where the former one was.
    project.write(HEAD, COUNTS.replace("frame.to_topic", "frame = frame.update(print)\nframe.to_topic"))
    mended = project.deploy()
    assert mended != version
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 30, b"k1": 30})


FAILS_AT_SEVEN = """
def fragile(value):
    if value == 7:
        raise ValueError("no such number: 7")
    return value

frame = application.dataframe(application.topic("{group}-in"))
frame = frame.apply(fragile).apply(count, stateful=True, store="{store}")
frame.to_topic(application.topic("{group}-out"))
"""


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
    project.counted({b"k0": 10, b"k1": 10})  # nothing went to Kafka

    # An operator that is killed while the new version is proven leaves the running one as it is, and no process behind.
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

    # Mended, it is proven and runs.
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
    """The result of the proof of the version that runs."""
    working = registry.releases.working(processor)
    assert working is not None
    assert working.code_version == version
    found = results_of(registry.journal.applies(processor=processor), working.release_id)
    assert found is not None
    (result,) = found
    return result


def _one(offset: object) -> tuple[int, int]:
    """The range of one offset."""
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
def test_a_new_store_begins_empty_and_the_old_one_goes_on(project: Project) -> None:
    project.stream.feed_numbers(20, keys=2)
    project.deploy()
    project.counted({b"k0": 10, b"k1": 10})
    project.write(HEAD, TWO_STORES)
    plan = project.plan()
    assert any("Store `lengths` is new and begins empty" in each for each in plan.findings)
    assert any("--from topic" in each for each in plan.findings)
    project.deploy()
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 20, b"k1": 20})

    # It is known to its changelog from then on: no flag is needed to start again, not even with nothing on disk.
    with project.verbs() as verbs:
        from holdfast.processors.lifecycle.plans.requests import Stop

        verbs.apply(verbs.plan(Stop(project.stream.group)))
        shutil.rmtree(project.settings.paths.state)
    project.deploy()
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 30, b"k1": 30})


@pytest.mark.thorough
def test_a_new_store_is_known_even_before_there_is_input(project: Project) -> None:
    project.stream.feed_numbers(20, keys=2)
    project.deploy()
    project.counted({b"k0": 10, b"k1": 10})
    project.write(HEAD, TWO_STORES)
    project.deploy()
    lengths = f"{project.stream.group}-lengths-changelog"
    wait_for(lambda: all(end > 0 for end in project.stream.topics.end_offsets(lengths, committed=True).values()), "it")


@pytest.mark.thorough
def test_a_store_that_goes_is_kept_until_it_is_dropped(project: Project) -> None:
    project.write(HEAD, TWO_STORES)
    project.stream.feed_numbers(20, keys=2)
    project.deploy()
    project.counted({b"k0": 10, b"k1": 10})
    lengths = f"{project.stream.group}-lengths-changelog"
    project.write(HEAD, COUNTS)
    assert any("Store `lengths` is no longer used" in each for each in project.plan().findings)
    project.deploy()
    assert project.stream.topics.describe([lengths])
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 20, b"k1": 20})

    # Wanted back, it does not fit what was read since.
    project.write(HEAD, TWO_STORES)
    plan = project.plan()
    assert isinstance(plan.verdict, Refused)
    assert "--drop lengths" in plan.verdict.action
    assert project.plan(dropped=("lengths",)).destructive
    project.deploy(dropped=("lengths",))
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 30, b"k1": 30})


@pytest.mark.thorough
def test_a_renamed_store_keeps_its_state(project: Project) -> None:
    project.stream.feed_numbers(20, keys=2)
    project.deploy()
    project.counted({b"k0": 10, b"k1": 10})
    project.write(HEAD, COUNTS, store="totals")
    with pytest.raises(PlanRefused, match="its state would be left behind") as refused:
        project.deploy()
    assert "renamed_stores={'totals': 'counts'}" in refused.value.action
    project.write(HEAD, COUNTS, store="totals", options="renamed_stores={'totals': 'counts'},")
    project.deploy()
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 20, b"k1": 20})


@pytest.mark.thorough
@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_a_deployment_that_was_killed_ends_right_when_asked_for_again(project: Project, stage: int) -> None:
    project.stream.feed_numbers(20, keys=2)
    project.deploy()
    project.write(HEAD, TWO_STORES)

    def die(text: str) -> None:
        if text.startswith(f"stage {stage} of 4") or (stage == 4 and text.startswith(project.stream.group)):
            raise Killed

    with pytest.raises(Killed):
        project.deploy(die)
    version = project.deploy()
    assert project.running_version() == version
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 20, b"k1": 20})


@pytest.mark.thorough
def test_tasks_that_are_joined_and_parted_with_two_workers_that_are_killed_stay_exact(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WORKERS", json.dumps({project.stream.group: 2}))
    clients = [ProcessorClient(project.stream.group, slot, project.settings.paths) for slot in ("0", "1")]

    def die(text: str) -> None:
        """The operator dies while workers start, and so do the workers that run."""
        if not text.startswith(project.stream.group):
            return
        for client in clients:
            status = client.status()
            if status is not None:
                with suppress(ProcessLookupError):
                    os.kill(status.pid, signal.SIGKILL)
        raise Killed

    rounds = 0

    def as_it_is_now(**request: object) -> str | None:
        """The workers that were killed come back while the plan is read; then the next plan is confirmed."""
        try:
            return project.deploy(**request)
        except PlanStale:
            return None

    def change(*parts: str, **request: object) -> None:
        nonlocal rounds
        project.write(HEAD, *parts)
        if rounds:
            assert any("stop every worker" in stage.says for stage in project.plan(**request).stages)
            with pytest.raises(Killed):
                project.deploy(die, **request)
        version = wait_for(lambda: as_it_is_now(**request), "a plan that no worker's start makes outdated")
        rounds += 1
        assert {status.code_version for client in clients if (status := client.status())} == {version}
        project.stream.feed_numbers(20, keys=2)
        project.counted({b"k0": 10 * rounds, b"k1": 10 * rounds})

    project.stream.topics.create(TopicSpec(f"{project.stream.group}-paid", 2, 1))
    change(COUNTS)
    change(JOINED)
    change(COUNTS)
    # Both slots have an old copy of the joined tasks, with a store that is dropped now.
    change(JOINED, dropped=("both",))


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


def answered(words: list[str], answer: str) -> tuple[int, bool]:
    """Type a command in a terminal and answer its question: its exit code, and whether it asked."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast.orchestration.cli", *words]
    with subprocess.Popen(command, cwd=PROJECT, stdin=theirs, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        told = b""
        with suppress(OSError):  # the terminal is gone with the command
            while part := os.read(ours, 4096):
                told += part
                if b"[y/N]" in told and answer:
                    os.write(ours, f"{answer}\n".encode())
                    answer = ""
        os.close(ours)
        return running.wait(60), b"Apply plan " in told


def test_the_words_of_every_day_ask_first_and_then_deploy_roll_back_restart_and_stop(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    name = project.stream.group
    project.stream.feed_numbers(20, keys=2)
    assert main(["deploy", name, "--timeout", "90"]) == 3
    told = " ".join(capfd.readouterr())
    assert f"`holdfast deploy {name} --timeout 90.0 --yes`" in told
    assert "Undo: `holdfast apply stop" in told
    assert project.client.status() is None
    assert main(["deploy", name, "--yes"]) == 0
    first = project.running_version()
    assert main(["deploy", name]) == 0, "nothing to do needs no answer"
    project.write(HEAD, COUNTS.replace("frame.to_topic", "frame = frame.update(print)\nframe.to_topic"))
    assert main(["deploy", name, "--yes"]) == 0
    second = project.running_version()
    assert second != first

    project.path.write_text("raise ValueError('typing')")  # the code of now can't be imported
    sys.modules.pop(project.module, None)
    assert answered(["rollback", name], "n") == (3, True)
    assert project.running_version() == second
    assert answered(["rollback", name], "y") == (0, True)
    assert project.running_version() == first
    assert answered(["rollback", name], "y") == (3, False), "a second one does not return to what the first one left"
    assert project.running_version() == first
    assert main(["deploy", name, "--yes"]) == 64
    project.stream.feed_numbers(20, keys=2)
    before = project.client.status()
    assert main(["restart", name, "--yes"]) == 0
    after = project.client.status()
    assert before is not None
    assert after is not None
    assert after.pid != before.pid
    assert project.running_version() == first, "a restart starts the deployed release, not the files"
    project.counted({b"k0": 20, b"k1": 20})
    project.write(HEAD, COUNTS)
    capfd.readouterr()
    for words, code in (
        (["status"], 0),
        (["top"], 0),
        (["audit", name], 0),
        (["plan", "stop", name], 2),
        (["explain", "stop", name], 2),
        (["stop", name, "--yes"], 0),
        (["apply", "list"], 0),
        (["rehearse", name], 64),  # its error: nothing runs
    ):
        assert main([*words, "--json"]) == code
        compare(words, json.loads(capfd.readouterr().out))
    assert project.client.status() is None
