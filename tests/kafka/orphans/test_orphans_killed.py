"""Archiving and deleting orphans (resources without an owner) is killed at each step.

The same command then resumes, and no record is lost.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.kafka.topics.topics import Topics
from holdfast.orchestration.verbs import Verbs
from holdfast.processors.lifecycle.orphans import kinds
from holdfast.processors.lifecycle.orphans.archive import Archive, ArchiveFailed
from holdfast.processors.lifecycle.plans.apply import PlanRefused
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.plans.requests import Request
from tests.kafka.conftest import PROJECT, wait_for
from tests.kafka.orphans.leaving import ALL, Left, same
from tests.mechanics.tiers import variants
from tests.parts.operated import Killed


@pytest.mark.parametrize("step", variants([1, 4, *(step for step in range(12) if step not in (1, 4))]))
def test_killed_anywhere_it_converges_when_it_is_asked_for_again(
    left: Left, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A killed `holdfast apply` command is repeated, and completes its work.

    It is killed right after each write of a small file and after each completed copy, one kill per run.
    """
    for name in ("archive", "delete"):
        plan = left.plan()
        places = 0
        real = Archive.note_deletion, Archive.finish

        def dying(original: Callable[..., Any]) -> Callable[..., Any]:
            def and_die(*arguments: Any) -> Any:
                nonlocal places
                places += 1
                if places == step + 1:
                    if step % 2:
                        original(*arguments)
                    raise Killed
                return original(*arguments)

            return and_die

        with monkeypatch.context() as patch:
            patch.setattr(Archive, "note_deletion", dying(real[0]))
            patch.setattr(Archive, "finish", dying(real[1]))
            try:
                left.apply(plan)
            except Killed:
                left.apply(plan)
        assert left.steps() == [], name
        assert left.verbs.applies()[0].outcome == "done"
        assert left.kinds() == (ALL if name == "archive" else [])
        left.now += timedelta(days=8)
    assert left.topics.describe([left.topic]) == {}
    assert not any(path.name.startswith(".deleted-") for path in left.settings.home.rglob("*"))
    assert left.put_back()


def killed_once(left: Left, plan_hash: str, trace: str) -> None:
    """Run the apply command as a process, and kill it once the archive contains a file or folder named ``trace``."""
    environment = {
        **os.environ,
        "HOLDFAST_HOME": str(left.settings.home),
        "HOLDFAST_ORPHAN_GRACE_DAYS": str(left.settings.orphan_grace_days),
    }
    command = [sys.executable, "-m", "holdfast.orchestration.cli", "apply", "clean", "--plan", plan_hash]
    with subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: process.poll() is not None or list(left.archive.root.glob(f"**/{trace}")), trace)
        process.kill()
        assert process.wait() == -signal.SIGKILL, "it ended before it could be killed"


@pytest.mark.thorough
def test_the_command_killed_by_the_system_goes_on_when_it_is_given_again(left: Left) -> None:
    left.settings = left.settings.model_copy(update={"orphan_grace_days": 0.0})
    left.now = datetime.now(UTC)
    left.write([(number % 2, b"k", b"v" * 1000) for number in range(20_000)])
    records = left.read()
    confirmed = left.plan()
    killed_once(left, confirmed.hash, "*.part")
    left.apply(confirmed)
    assert not list(left.archive.root.glob("**/*.part"))
    assert left.kinds() == ALL
    assert same(left.read(), records)

    left.now = datetime.now(UTC)
    confirmed = left.plan()
    assert {kind for kind, _ in left.steps()} == {"delete"}
    killed_once(left, confirmed.hash, "deletion.json")
    left.apply(confirmed)
    assert left.kinds() == []
    left.put_back()
    assert same(left.read(), records)


def test_a_folder_half_deleted_goes_with_the_next_apply(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    left.apply()
    left.now += timedelta(days=8)
    plan = left.plan()

    def half(path: Path) -> None:
        next(path.rglob("*.sst")).unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(kinds, "_remove", half)
        with pytest.raises(Killed):
            left.apply(plan)
    assert ("finish", "checkpoint") in left.steps()
    left.apply(plan)
    assert left.kinds() == []
    assert not list(left.settings.home.glob("**/.deleted-*"))


@pytest.mark.thorough
def test_a_copy_that_fails_leaves_nothing_and_no_archive_is_made_among_the_orphans(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = left.plan()

    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(kinds, "sha256_of", no_room)
        with pytest.raises(ArchiveFailed, match="No space left on device"):
            left.apply(plan)
    assert not list(left.archive.root.glob("**/*.part"))
    assert [kind for kind, _ in left.archive.newest()[0]] == ["group"]
    (begun,) = left.verbs.applies()
    assert (begun.outcome, len(begun.done)) == (None, 1)
    assert "No space left on device" in begun.reason
    left.apply(plan)
    assert left.steps() == []

    left.settings = left.settings.model_copy(update={"archive": left.settings.paths.state / "archive"})
    with pytest.raises(PlanRefused, match="which is searched for orphans"):
        left.apply()
    assert not left.archive.root.exists()


@pytest.mark.thorough
def test_a_deletion_that_takes_effect_after_the_plan_is_finished(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed command has requested the deletion of a topic. The next command must notice that the topic is gone.

    The brokers delete the topic only after the next plan is made.
    """
    left.apply()
    left.now += timedelta(days=8)

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Topics, "delete", killed)
        with pytest.raises(Killed):
            left.apply(left.plan("topic"))
    (begun, _) = left.verbs.applies()
    assert left.verbs.abandon(begun.id, reason="planned anew")
    plan = left.plan("topic")
    planned = Verbs.plan

    def then_gone(verbs: Verbs, request: Request) -> Plan:
        found = planned(verbs, request)
        left.topics.delete(left.topic)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Verbs, "plan", then_gone)
        left.verbs.apply(plan, confirmed=plan.hash)
    copy = left.archive.newest()[0]["topic", left.topic]
    assert copy.original_deleted
    assert "topic" not in left.kinds()
