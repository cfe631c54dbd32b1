"""Drills of operations: full queues, interrupted commands, one worker out of several, and code that changes.

During each of these drills, snapshots of another processor are taken.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from holdfast.infra.settings import PROJECT
from holdfast.processors.lifecycle.deploy.deployment import deploy
from tests.drills.busy_machine import full_queue, snapshots_beside
from tests.drills.drilling import drill
from tests.drills.exercise import STORE, WORKING, Exercise
from tests.drills.home import MODULE, module_of
from tests.drills.patience import wait_for
from tests.parts.operated import DEFINITION

#: A program that locks the state folder of a slot (place of a worker) after the worker has ended. It holds the lock
#: until its standard input ends.
HOLD = """
import sys, time
from pathlib import Path
from holdfast.processors.engine.state.errors import StateFolderTaken
from holdfast.processors.engine.state.folder import StateFolder

while True:
    try:
        held = StateFolder(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
        break
    except StateFolderTaken:
        time.sleep(0.02)
print("held", flush=True)
sys.stdin.read()
"""
#: A program that clears a key, and is killed before the first stage (step) of its plan. The processor must continue.
KILLED_EARLY = """
import os, signal, sys
from holdfast import Clear, Keys, load_settings, open_verbs

with open_verbs(load_settings(), who="a drill") as verbs:
    plan = verbs.plan(Clear(sys.argv[1], stores=(sys.argv[2],), selection=Keys((sys.argv[3],))))

    def tell(text):
        if text.startswith("stage 1 of"):
            os.kill(os.getpid(), signal.SIGKILL)

    verbs.apply(plan, confirmed=plan.hash, tell=tell)
"""
HELPED = DEFINITION.replace(
    "from holdfast import Application", "from drill_helper import after\nfrom holdfast import Application"
).replace('state.get("n", 0) + 1', 'after(state.get("n", 0))')
CLEARED = "k3"


@drill(30, "a worker is killed while all lanes and pools of the queue are full of runs that do not end")
def queue_full(it: Exercise) -> None:
    it.begin()
    with snapshots_beside(it.home), full_queue(it.home):
        it.broken()
        os.kill(it.pid, signal.SIGKILL)
        it.says(it.processor_asset, WORKING, "SIGKILL")
        it.mended()
    it.exact()


@drill(31, "the terminal of a deploy is closed (SIGHUP), then a worker is killed")
def terminal_closed(it: Exercise) -> None:
    begin_with(it, 2)
    former = define_newer(it)
    with snapshots_beside(it.home):
        with heard(signal.SIGHUP):
            rollout = it.home.started("apply", "deploy", it.name)
        wait_for(lambda: it.deployment().desired == "deploying", "the rollout to begin")
        it.broken()
        end_early(rollout, signal.SIGHUP)
        it.says(it.processor_asset, WORKING, "An apply was interrupted", f"holdfast apply deploy {it.name}")
        killed = it.running_pids()
        kill_and_see_again(it, killed, "recovery to start the killed workers while the apply is open")
        roll_out(it, former)
    it.exact()


@drill(32, "one of three workers waits for a person, and the other two are killed")
def one_asks(it: Exercise) -> None:
    begin_with(it, 3)
    with snapshots_beside(it.home), folder_held(it, "2") as held:
        it.broken()
        os.kill(it.running_pids()["2"], signal.SIGKILL)
        assert held.stdout is not None
        assert held.stdout.readline() == b"held\n"
        it.says(it.processor_asset, WORKING, "Slot 2", f"held by the live process {held.pid}", "What to do")
        killed = {slot: pid for slot, pid in it.running_pids().items() if slot != "2"}
        kill_and_see_again(it, killed, "the others to come back")
        assert "2" not in it.running_pids(), "it still waits for a person"
        it.act_outside("the other process is ended, then `holdfast apply deploy NAME`", lambda: end_holder(held))
        it.home.cli("apply", "deploy", it.name)
        it.mended()
    it.exact()


@drill(33, "the project's module for Dagster can't be imported, then a worker is killed", project=True)
def broken_module(it: Exercise) -> None:
    it.begin()
    file = it.home.definitions / f"{MODULE}.py"
    text = file.read_text()
    with snapshots_beside(it.home, broken_module=True):
        it.broken()
        file.write_text("import nothing_of_this_name\n")
        it.status_says("code location holdfast", "No module named 'nothing_of_this_name'")
        killed_at = time.time()
        os.kill(it.pid, signal.SIGKILL)
        recovered_since(it, killed_at)
        it.act_outside("the import is corrected", lambda: file.write_text(text))
        it.status_is_silent("code location holdfast")
    it.exact()


@drill(34, "Ctrl-C in a rolling deploy, which is then given up: two versions run")
def half_rolled(it: Exercise) -> None:
    begin_with(it, 3)
    former = define_newer(it)
    with snapshots_beside(it.home):
        rollout = it.home.started("apply", "deploy", it.name)
        wait_for(lambda: len(set(it.versions().values())) == 2, "one worker of the new version")
        end_early(rollout, signal.SIGINT)
        it.broken()
        left = it.home.cli("apply", "abandon", str(it.open_apply().id), "--reason", "a drill").text
        assert f"workers of {it.name} differ" in left, left
        it.says(it.processor_asset, WORKING, "runs another version", f"holdfast apply deploy {it.name}")
        roll_out(it, former)
    it.exact()


@drill(35, "Ctrl-C in `scale` from 3 to 2, which is then given up: a third worker runs")
def scale_interrupted(it: Exercise) -> None:
    begin_with(it, 3)
    with snapshots_beside(it.home):
        scaling = it.home.started("apply", "scale", it.name, "2")
        wait_for(lambda: len(it.deployment().slots) == 2, "the change to be recorded")
        end_early(scaling, signal.SIGINT)
        assert "2" in it.running_pids(), "it came too late: the third worker was stopped"
        it.broken()
        left = it.home.cli("apply", "abandon", str(it.open_apply().id), "--reason", "a drill").text
        assert f"holdfast apply scale {it.name} 2" in left, left
        it.says(it.processor_asset, WORKING, "Slot 2", "not recorded", f"holdfast apply scale {it.name} 2")
        it.act("apply", "scale", it.name, "2")
        it.mended()
        assert "2" not in it.running_pids()
    it.exact()


@drill(36, "a clear is killed before its first stage, the processor counts on, and the clear is resumed")
def undo_file(it: Exercise) -> None:
    it.begin()
    with snapshots_beside(it.home):
        it.broken()
        command = [sys.executable, "-c", KILLED_EARLY, it.name, STORE, CLEARED]
        environment = {**os.environ, **it.home.environment}
        killed = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        it.says(it.processor_asset, WORKING, "An apply was interrupted", "apply resume")
        counted = it.logged()[CLEARED]
        wait_for(lambda: it.logged()[CLEARED] > counted, "the processor to count on")
        it.act("apply", "resume", str(it.open_apply().id))
        it.mended()
    (file,) = it.home.settings.paths.exports(it.name).glob("*.jsonl")
    deleted = number_in(file, CLEARED)
    assert deleted > counted
    # the count in the exported file and the newer counts together must equal the number of messages
    it.beside[CLEARED] -= deleted
    it.exact(outputs=lambda expected: counted_twice(it, expected, deleted))


@drill(
    37,
    "a module that the processor imports is changed, then deleted, and its worker killed each time",
    definition=HELPED,
)
def helper_changed(it: Exercise) -> None:
    it.begin()
    helper = it.home.definitions / "drill_helper.py"
    text = helper.read_text()
    try:
        with snapshots_beside(it.home):
            helper.write_text(text.replace("+ 1", "+ 1000"))
            it.broken()
            os.kill(it.pid, signal.SIGKILL)
            it.says(it.processor_asset, WORKING, "SIGKILL")
            it.mended()
            helper.unlink()
            it.broken()
            killed_at = time.time()
            os.kill(it.pid, signal.SIGKILL)
            subject = f"definition {module_of(it.name)}:application"
            it.status_says(subject, "drill_helper")
            recovered_since(it, killed_at)
            it.act_outside("the module is put back", lambda: helper.write_text(text))
            it.status_is_silent(subject)
    finally:
        helper.write_text(text)
    it.exact()


def begin_with(it: Exercise, workers: int) -> None:
    """Start the processor with this number of workers."""
    it.begin()
    with it.home.verbs() as verbs:
        slots = tuple(map(str, range(workers)))
        deploy(replace(verbs._rollout(it.name, None), slots=slots), verbs._world)
    wait_for(lambda: len(it.running_pids()) == workers, f"{workers} workers to run")


def define_newer(it: Exercise) -> str:
    """Define another version with the same behaviour. Returns the version that is running."""
    text = DEFINITION.format(group=it.name)
    newer = text.replace('state.get("n", 0) + 1', '1 + state.get("n", 0)', 1)
    assert newer != text
    it.home.define(it.name, newer)
    (former,) = set(it.versions().values())
    return former


@contextmanager
def heard(number: signal.Signals) -> Iterator[None]:
    """Let processes that start in this block react to this signal, even if the tests were started with `nohup`."""
    former = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, former)


def end_early(command: subprocess.Popen[str], by: signal.Signals) -> None:
    """End a running command with this signal."""
    command.send_signal(by)
    text, _ = command.communicate(timeout=120)
    assert command.returncode != 0, f"it was through before: {text}"


def kill_and_see_again(it: Exercise, killed: dict[str, int], what: str) -> None:
    """Kill these workers with -9, and wait until each of their slots (places) has another process."""
    killed_at = time.time()
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: all_run_anew(it, killed), what)
    it.result.came_back(time.time() - killed_at)


def roll_out(it: Exercise, former: str) -> None:
    """Run the deploy command that the check names. Afterwards all workers must run the same new version."""
    it.act("apply", "deploy", it.name)
    it.mended()
    versions = set(it.versions().values())
    assert len(versions) == 1
    assert former not in versions


def all_run_anew(it: Exercise, former: dict[str, int]) -> bool:
    """Whether each of these slots (places of workers) has a new process that runs."""
    now = it.running_pids()
    return all(now.get(slot, pid) != pid for slot, pid in former.items())


def recovered_since(it: Exercise, killed_at: float) -> None:
    """Wait until the check has reported a kill and passes again. Record the seconds from the kill until then."""
    it.red_since(it.processor_asset, WORKING, killed_at, "SIGKILL")
    it.result.came_back(it.green(it.processor_asset, WORKING, since=killed_at) - killed_at)


@contextmanager
def folder_held(it: Exercise, slot: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that locks the state folder of a slot (place of a worker) when the worker ends."""
    command = [sys.executable, "-c", HOLD, str(it.home.settings.paths.state), it.name, slot]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            yield holder
        finally:
            end_holder(holder)


def end_holder(holder: subprocess.Popen[bytes]) -> None:
    """End the process that holds the state folder."""
    assert holder.stdin is not None
    holder.stdin.close()
    holder.wait(60)


def number_in(file: Path, key: str) -> int:
    """The count of a key in an exported file."""
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    (entry,) = (each for each in entries if each["key"] == key)
    return int(entry["value"])


def counted_twice(it: Exercise, expected: dict[str, int], deleted: int) -> None:
    """Assert the outputs.

    The cleared key counts to ``deleted``, and then again from 1. Each other key counts from 1 to n.
    """
    seen = it.sent()
    again = expected[CLEARED]
    assert seen.pop(CLEARED) == [*range(1, deleted + 1), *range(1, again + 1)]
    assert seen == {key: list(range(1, total + 1)) for key, total in expected.items() if key != CLEARED}
