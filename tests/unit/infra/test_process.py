"""A process is known by its id and the moment it started."""

from __future__ import annotations

import os
import subprocess
import sys

from holdfast.infra.process import end_group, end_process, group_members, is_running, start_mark


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
