"""A process is identified by its process id and its start time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.infra.system.process import (
    ProcessIdentity,
    end_group,
    end_process,
    fate_of,
    group_members,
    identity_beside,
    identity_of,
    is_running,
    own_identity,
    read_identity,
    record_identity,
    recorded_runs,
    start_mark,
    write_identity,
)


def test_this_process_runs_and_another_mark_is_another_process() -> None:
    mark = start_mark(os.getpid())
    assert mark is not None
    assert is_running(os.getpid(), mark)
    assert not is_running(os.getpid(), mark + "0")


def test_a_process_that_ends_when_asked_ends_by_itself() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
    child.stdout.readline()
    assert end_process(child.pid, start_mark(child.pid), timeout_s=10)
    assert start_mark(child.pid) is None
    child.communicate()


def test_a_process_that_does_not_listen_is_killed() -> None:
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=-1)
    child.stdout.readline()
    assert not end_process(child.pid, start_mark(child.pid), timeout_s=0.2)
    assert start_mark(child.pid) is None
    child.communicate()


def test_ending_what_has_ended_is_fine() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert end_process(child.pid, "1", timeout_s=1)


def test_a_group_ends_with_the_members_that_do_not_listen_and_outlived_their_parent() -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {deaf!r}])"
    leader = subprocess.Popen([sys.executable, "-c", parent], stdout=-1, start_new_session=True)
    leader.stdout.readline()
    leader.wait()
    assert len(group_members(leader.pid)) == 1
    end_group(leader.pid, timeout_s=0.2)
    assert not group_members(leader.pid)
    end_group(leader.pid, timeout_s=1)
    leader.communicate()


words = st.text(st.characters(blacklist_characters="/", blacklist_categories=("Cs", "Cc", "Z")), min_size=1)


@given(st.builds(ProcessIdentity, st.integers(0, 2**31), words, words, words))
def test_an_identity_is_read_from_its_text(identity: ProcessIdentity) -> None:
    assert ProcessIdentity.parse(f"{identity}\n") == identity


@pytest.mark.parametrize("text", ["", "7", "b/n/7", "b/n/x/1", "/n/7/1", "b//7/1", "b/n/7/", "b/n/-7/1"])
def test_another_text_is_no_identity(text: str) -> None:
    assert ProcessIdentity.parse(text) is None


def test_only_a_process_of_this_boot_and_container_can_be_seen_to_end() -> None:
    ours = own_identity()
    assert identity_of(ours.pid) == ours
    assert fate_of(ours) == "running"
    assert fate_of(replace(ours, mark="1")) == "ended"
    assert fate_of(replace(ours, boot="another")) == "unseen"
    assert fate_of(replace(ours, namespace="1.2")) == "unseen"


def test_an_identity_does_not_move_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, now = own_identity(), time.time()
    for step_s in (-86_400, 3_600):
        monkeypatch.setattr(time, "time", lambda at=now + step_s: at)
        assert own_identity() == ours
        assert fate_of(ours) == "running"


def test_a_file_of_a_former_version_names_its_process_without_a_boot(tmp_path: Path) -> None:
    file, ours = tmp_path / "daemon.json", own_identity()
    assert recorded_runs(file, ours.pid, ours.mark)
    assert not recorded_runs(file, ours.pid, ours.mark + "0")
    # Record the process's identity, as this version of Holdfast does. Then an older version of Holdfast replaces
    # `daemon.json`, but leaves the old identity in its separate file.
    record_identity(file, ours.pid)
    assert recorded_runs(file, ours.pid, ours.mark)
    assert not recorded_runs(file, os.getppid(), ours.mark)
    assert recorded_runs(file, os.getppid(), start_mark(os.getppid()) or "")


def test_a_file_from_before_a_restart_of_the_machine_names_no_process(tmp_path: Path) -> None:
    file, ours = tmp_path / "daemon.json", own_identity()
    write_identity(identity_beside(file), replace(ours, boot="before"))
    assert not recorded_runs(file, ours.pid, ours.mark)


def test_a_damaged_identity_counts_as_none(tmp_path: Path) -> None:
    file, ours = tmp_path / "daemon.json", own_identity()
    identity_beside(file).write_bytes(b"\xff\xfe")
    assert read_identity(identity_beside(file)) is None
    assert recorded_runs(file, ours.pid, ours.mark)
