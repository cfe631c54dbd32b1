"""Archiving and deleting orphans, broken off anywhere: given again, it goes on, and nothing is lost."""

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

from holdfast.assets.orphan_cleaning import open_cleaning
from holdfast.processors.lifecycle.orphans import cleaning as orphan_cleaning
from holdfast.processors.lifecycle.orphans import kinds
from holdfast.processors.lifecycle.orphans.archive import ArchiveFailed
from holdfast.processors.lifecycle.orphans.put_back import put_back
from tests.kafka.conftest import PROJECT, wait_for
from tests.kafka.orphans.leaving import ALL, Left, same
from tests.operating import Killed
from tests.tiers import variants


@pytest.mark.parametrize("step", variants([1, 4, *(step for step in range(12) if step not in (1, 4))], tested=2))
def test_killed_anywhere_it_converges_when_it_is_asked_for_again(
    left: Left, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Each write of a small file, and each copy that gets its name, is a place to die right after."""
    for name in ("archive", "delete"):
        plan = left.cleaning.plan()
        places = 0
        real = orphan_cleaning.ArchiveFolder.note_deletion, orphan_cleaning.ArchiveFolder.finish

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
            patch.setattr(orphan_cleaning.ArchiveFolder, "note_deletion", dying(real[0]))
            patch.setattr(orphan_cleaning.ArchiveFolder, "finish", dying(real[1]))
            try:
                left.cleaning.apply(plan.hash)
            except Killed:
                left.cleaning.apply(plan.hash)
        assert left.cleaning.plan().steps == (), name
        assert left.kinds() == (ALL if name == "archive" else [])
        left.now += timedelta(days=8)
    assert left.topics.describe([left.topic]) == {}
    assert not any(path.name.startswith(".deleted-") for path in left.settings.home.rglob("*"))
    assert put_back(left.archive, left.topics, left.topic)


def killed_once(left: Left, plan_hash: str, trace: str) -> None:
    """Run the command line's apply, and kill it as soon as the archive has a file or folder of that name."""
    environment = {
        **os.environ,
        "HOLDFAST_HOME": str(left.settings.home),
        "HOLDFAST_ORPHAN_GRACE_DAYS": str(left.settings.orphan_grace_days),
    }
    command = [sys.executable, "-m", "holdfast.orchestration.cli", "orphans", "apply", "--confirm", plan_hash]
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
    confirmed = left.cleaning.plan().hash
    killed_once(left, confirmed, "*.part")
    left.cleaning.apply(confirmed)
    assert not list(left.archive.root.glob("**/*.part"))
    assert left.kinds() == ALL
    assert same(left.read(), records)

    left.now = datetime.now(UTC)
    confirmed = left.cleaning.plan().hash
    assert {kind for kind, _ in left.steps()} == {"Delete"}
    killed_once(left, confirmed, "deletion.json")
    left.cleaning.apply(confirmed)
    assert left.kinds() == []
    put_back(left.archive, left.topics, left.topic)
    assert same(left.read(), records)


def test_a_folder_half_deleted_goes_with_the_next_apply(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    left.apply()
    left.now += timedelta(days=8)
    plan = left.cleaning.plan()

    def half(path: Path) -> None:
        next(path.rglob("*.sst")).unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(kinds, "_remove", half)
        with pytest.raises(Killed):
            left.cleaning.apply(plan.hash)
    assert ("Finish", "checkpoint") in left.steps()
    left.cleaning.apply(plan.hash)
    assert left.kinds() == []
    assert not list(left.settings.home.glob("**/.deleted-*"))


def test_a_copy_that_fails_leaves_nothing_and_no_archive_is_made_among_the_orphans(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = left.cleaning.plan()

    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(kinds, "sha256_of", no_room)
        with pytest.raises(ArchiveFailed, match="No space left on device"):
            left.cleaning.apply(plan.hash)
    assert not list(left.archive.root.glob("**/*.part"))
    assert [kind for kind, _ in left.archive.newest()[0]] == ["group"]
    assert left.registry.actions()[0].outcome.startswith("failed after 1 step(s)")
    left.cleaning.apply(plan.hash)
    assert left.cleaning.plan().steps == ()

    within = left.settings.model_copy(update={"archive": left.settings.paths.state / "archive"})
    inside = open_cleaning(within, left.registry, left.topics, "a test")
    with pytest.raises(ArchiveFailed, match="which is searched for orphans"):
        inside.apply(inside.plan().hash)
    assert not within.archive_folder.exists()
