"""A proof runs a new version on given messages in a real process, before it is deployed.

Tests code that hangs, state that cannot be read, and that no file contains the messages.
"""

from __future__ import annotations

import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.assets.checks.proven import results_of
from holdfast.infra.database.records import ApplyRecord, StageNote
from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.infra.settings import PROJECT
from holdfast.infra.system.process import start_mark
from holdfast.infra.waiting import wait_until
from holdfast.processors.engine.serving.worker_client import ProcessorSilent
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, encode
from holdfast.processors.lifecycle.plans.requests import Deploy
from holdfast.processors.lifecycle.plans.stages import ProveVersion, RunProcessor
from holdfast.processors.proof import gathering
from holdfast.processors.proof.documents import Message
from holdfast.processors.proof.prover import Prover
from holdfast.processors.proof.refusal import NOT_PROVEN, NotProven

WORKS = """
from holdfast import Application
application = Application(consumer_group="bank")
def amount(value):
    return value
application.dataframe(application.topic("orders")).apply(amount).to_topic(application.topic("sums"))
"""
HANGS = WORKS.replace("    return value\n", "    while value:\n        pass\n")
#: A step that searches all readable files for the messages, as a program of another user could.
LOOKS = WORKS.replace(
    "    return value\n",
    """
    import os, pathlib, tempfile
    for folder in (tempfile.gettempdir(), os.environ["HOLDFAST_HOME"]):
        for path in pathlib.Path(folder).rglob("*"):
            if path.is_file() and b"SECRET" in path.read_bytes():
                raise ValueError(f"{path} has the message")
    return value
""",
)
STAGE = ProveVersion("", "v2", "new", "former", "v1", ("orders",), 100)


class Topics:
    """A topic with two partitions. The group has committed offset 3 of partition 0."""

    def describe(self, names: Any) -> dict[str, TopicFacts]:
        return {name: TopicFacts(name, name, 2, 1, {}) for name in names}

    def committed_offsets(self, group: str) -> dict[Partition, int]:
        return {Partition("orders", 0): 3}

    def offsets_of_all(self, counts: Any, edge: str) -> dict[str, dict[int, int]]:
        return {name: {} for name in counts}


class Worker:
    """A worker that answers a checkpoint request, unless it is silent."""

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent

    def checkpoint(self) -> dict[str, Any]:
        if self._silent:
            raise ProcessorSilent("Worker 0 of bank does not answer.", action="Wait.")
        return {"tasks": []}


@pytest.fixture
def prover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prover:
    return prover_in(tmp_path, monkeypatch, new=WORKS, former=WORKS)


def prover_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **texts: str) -> Prover:
    """A prover (it runs trial runs of versions) for releases with this code. It reads one message, and no state."""
    message = Message(1, b"ann", b'"SECRET"', 1_700_000_000_000)
    read = lambda topics, topic, number, start, end: [message] if end else []  # noqa: E731
    monkeypatch.setattr(gathering, "messages_of", read)
    return Prover(
        topics=cast(Any, Topics()),
        client=lambda processor, slot: cast(Any, Worker()),
        slots=lambda processor: ("0",),
        stores=lambda processor: (),
        rollout=rollouts(folder, **texts),
        scratch=lambda processor: folder / "scratch",
    )


def rollouts(folder: Path, **texts: str) -> Any:
    def rollout(processor: str, release: str | None) -> Rollout:
        assert release is not None
        project = folder / release
        project.mkdir(exist_ok=True)
        (project / f"bank_{release}.py").write_text(texts[release])
        environment = {
            "HOLDFAST_PROCESSORS": f'["bank_{release}:application"]',
            "PYTHONPATH": str(project),
            "HOLDFAST_HOME": str(folder / "home"),
        }
        return Rollout("bank", release, ("0",), {"orders": 2}, environment, project)

    return rollout


@pytest.mark.slow
def test_a_version_that_hangs_where_the_running_one_does_not_is_refused_with_its_place(
    prover: Prover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rollouts(tmp_path, new=HANGS, former=WORKS)

    def rollout(processor: str, release: str | None) -> Rollout:
        monkeypatch.setattr("holdfast.processors.proof.prover.RUN_S", 4.0 if release == "new" else 60.0)
        return cast(Rollout, given(processor, release))

    with pytest.raises(NotProven, match=r"took longer than 4 s; it was in File .*bank_new\.py") as refused:
        replace(prover, rollout=rollout)("bank", STAGE, lambda text: None)
    assert "Version v1 keeps running" in refused.value.message
    assert not (tmp_path / "scratch").exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_messages_lie_in_no_file_that_has_a_name(prover: Prover, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "planted").write_bytes(b"SECRET")
    looking = replace(prover, rollout=rollouts(tmp_path, new=LOOKS, former=WORKS))
    with pytest.raises(NotProven, match="planted has the message"):
        looking("bank", STAGE, lambda text: None)
    (tmp_path / "home" / "planted").unlink()
    assert looking("bank", STAGE, lambda text: None).text == (
        "version v2 processed 1 message, outputs: sums 1; none failed"
    )
    assert not (tmp_path / "scratch").exists()


#: The code of a version that writes a file, reports its process id and the folder's mode, and then hangs.
WRITES = HANGS.replace(
    "    while value:",
    """
    import os, pathlib, stat, tempfile
    folder = pathlib.Path(tempfile.gettempdir())
    (folder / "kept").mkdir(mode=0o755)
    (folder / "kept" / "mine").write_text("SECRET")
    mode = stat.S_IMODE(folder.stat().st_mode)
    told = pathlib.Path(os.environ["HOLDFAST_HOME"]) / "told"
    told.with_name("new").write_text(f"{os.getpid()} {mode:o}")
    told.with_name("new").replace(told)
    while value:""",
)
#: An operator in a separate process that the test can kill.
OPERATOR = """
import sys
from pathlib import Path
from tests.unit.processors.proof import test_prover as here

here.operate(Path(sys.argv[1]))
"""


def operate(folder: Path) -> None:
    """Start a proof (trial run) of the code version that writes a file and then hangs."""
    with pytest.MonkeyPatch.context() as patch:
        prover_in(folder, patch, new=WRITES, former=WORKS)("bank", STAGE, lambda text: None)


@pytest.mark.slow
def test_a_killed_proof_leaves_no_process_and_its_files_are_private_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    told, scratch = tmp_path / "home" / "told", tmp_path / "scratch"
    with subprocess.Popen([sys.executable, "-c", OPERATOR, str(tmp_path)], cwd=PROJECT) as operator:
        try:
            assert wait_until(told.exists, 120.0), "the version did not write"
            pid, mode = told.read_text().split()
            mark = start_mark(int(pid))
            assert mark is not None
        finally:
            operator.kill()
    assert mode == "700"
    assert wait_until(lambda: start_mark(int(pid)) != mark, 30.0), "the version's process lives on"
    assert (scratch / "kept" / "mine").read_text() == "SECRET", "nobody was there to remove it"
    # the operator repeats the command, so the next trial run starts
    said = prover_in(tmp_path, monkeypatch, new=WORKS, former=WORKS)("bank", STAGE, lambda text: None).text
    assert "none failed" in said
    assert not scratch.exists()


@pytest.mark.thorough
def test_what_a_refused_version_wrote_is_removed(prover: Prover, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    fails = WRITES.replace("    while value:\n        pass\n", "    raise ValueError(value)\n")
    assert fails != WRITES
    with pytest.raises(NotProven, match="ValueError"):
        replace(prover, rollout=rollouts(tmp_path, new=fails, former=WORKS))("bank", STAGE, lambda text: None)
    assert (tmp_path / "home" / "told").exists()
    assert not (tmp_path / "scratch").exists()


def test_state_that_could_not_be_had_is_not_proven_with_the_reason(prover: Prover) -> None:
    silent = replace(prover, client=lambda processor, slot: cast(Any, Worker(silent=True)))
    said = silent("bank", STAGE, lambda text: None).text
    assert said.startswith(f"{NOT_PROVEN}the state of the messages' keys could not be read: Worker 0 of bank does not")


class Killed(BaseException):
    """Raised in place of a kill: the process ends here."""


def test_what_a_killed_proof_left_is_deleted_by_the_next_one_and_no_other_user_reads_it(
    prover: Prover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "written-by-a-version").write_bytes(b"SECRET" * 1_000)
    seen = []

    def run(command: list[str], **given: Any) -> Any:
        folder = Path(given["env"]["TMPDIR"])
        seen.append((folder, stat.S_IMODE(folder.stat().st_mode), list(folder.iterdir())))
        (folder / "more").write_bytes(b"SECRET")
        raise Killed

    monkeypatch.setattr("holdfast.processors.proof.prover.subprocess.run", run)
    with pytest.raises(Killed):
        prover("bank", STAGE, lambda text: None)
    assert seen == [(scratch, 0o700, [])]
    assert not scratch.exists()


def apply_of(number: int, verb: str, release: str, *notes: str, outcome: str = "done") -> ApplyRecord:
    plan = Plan(request=Deploy("bank"), verdict=Ready(""), stages=(STAGE, RunProcessor("", "v1", release_id=release)))
    done = tuple(StageNote(at, "prove_version", text, 0, 0.0) for at, text in enumerate(notes))
    facts: dict[str, Any] = {"id": number, "processor": "bank", "verb": verb, "plan_hash": "", "plan": encode(plan)}
    rest: dict[str, Any] = {"who": "", "holder": None, "token": 0, "started_at": None, "finished_at": None}
    return ApplyRecord(**facts, **rest, outcome=cast(Any, outcome), reason="", done=done, silent_s=0.0)


def test_after_a_rollback_the_check_speaks_of_the_version_that_runs() -> None:
    applies = [
        apply_of(4, "rollback", "one"),
        apply_of(3, "deploy", "three", "refused", outcome="failed"),
        apply_of(2, "deploy", "two", "not proven: no input"),
        apply_of(1, "deploy", "one", "version v1 processed 3 messages"),
    ]
    assert results_of(applies, "one") == ["version v1 processed 3 messages"]
    assert results_of(applies, "two") == ["not proven: no input"]
    assert results_of(applies, "three") is None
    assert results_of(applies, None) == []
