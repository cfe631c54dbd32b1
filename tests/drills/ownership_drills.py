"""Drills of ownership: a second installation, an older copy of Holdfast's database, and a locked catalog.

In another drill, an operator abandons an interrupted command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.settings import PROJECT
from holdfast.processors.lifecycle.plans.requests import Deploy
from tests.drills.drilling import drill
from tests.drills.exercise import STORE, WORKING, Exercise, Feeder
from tests.drills.patience import wait_for
from tests.parts.operated import DEFINITION, PARTITIONS

#: A program that holds the lock of a catalog until its standard input ends.
HOLD = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""
#: A program that clears a processor's state, and is killed right before the keys are deleted.
KILLED_CLEAR = """
import os, signal, sys
from holdfast import Clear, load_settings, open_verbs
from holdfast.processors.lifecycle.plans.stages import ClearKeys

with open_verbs(load_settings(), who="a drill") as verbs:
    plan = verbs.plan(Clear(sys.argv[1]))
    number = next(at for at, stage in enumerate(plan.stages, 1) if isinstance(stage, ClearKeys))

    def tell(text):
        if text.startswith(f"stage {number} of"):
            os.kill(os.getpid(), signal.SIGKILL)

    verbs.apply(plan, confirmed=plan.hash, tell=tell)
"""
MATCHES_STATE = "matches_state"


@drill(25, "a second installation deploys the same group")
def second_installation(it: Exercise) -> None:
    it.begin()
    pid, other = it.pid, it.home.beside(it.name)
    deploy = ("apply", "deploy", it.name)
    it.broken()
    try:
        it.refused(other, deploy, "no worker of this installation is", "host", f"client id holdfast-{it.name}-", "stop")
        assert it.pid == pid
        it.act("apply", "stop", it.name)
        other.cli(*deploy)
        it.processed()
        it.result.mended(time.time() - it.acted_at)
        other.cli("apply", "stop", it.name)
    finally:
        other.cli("down", check=False)
    it.home.cli(*deploy)
    it.exact()


@drill(26, "registry replaced by an older copy")
def registry_put_back(it: Exercise) -> None:
    it.begin()
    copy = it.home.settings.paths.registry.with_suffix(".copy")
    it.home.cli("registry", "backup", str(copy))
    text = DEFINITION.format(group=it.name)
    newer = text.replace('state.get("n", 0) + 1', '1 + state.get("n", 0)', 1)
    assert newer != text
    it.home.define(it.name, newer)
    it.home.cli("apply", "deploy", it.name)
    status = it.client.status()
    assert status is not None
    version = status.code_version
    it.broken()
    it.home.cli("registry", "restore", str(copy), "--yes")
    it.says(it.processor_asset, WORKING, "replaced by an older copy", f"holdfast registry adopt {it.name}")
    os.kill(it.pid, signal.SIGKILL)
    it.red_since(it.processor_asset, "registered", it.broke_at, "older than")
    assert it.incidents() == [], "nothing recovers what the registry does not know"
    assert it.client.status() is None
    it.act("registry", "adopt", it.name)
    it.mended()
    it.green(it.processor_asset, WORKING, since=it.acted_at)
    status = it.client.status()
    assert status is not None
    assert status.code_version == version, "it was rolled back"
    it.exact()


@drill(27, "warehouse catalog locked")
def catalog_locked(it: Exercise) -> None:
    it.begin()
    assert it.materialise(it.state_asset) == "SUCCESS"
    assert it.materialise(it.snapshot_asset) == "SUCCESS"
    it.green(it.snapshot_asset, MATCHES_STATE)
    command = [sys.executable, "-c", HOLD, str(it.home.settings.paths.catalog)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        it.broken()
        run = it.home.dagster.launch("__ASSET_JOB", {}, [it.snapshot_asset])
        it.says(it.snapshot_asset, MATCHES_STATE, "locked", f"process {holder.pid} (", "Nothing is lost")
        assert it.home.dagster.ended(run) == "FAILURE"
        assert "locked" in it.home.dagster.failure_of(run), "the failed step says it, too"
        holder.stdin.close()
        holder.wait(60)
    it.launch("__ASSET_JOB", {}, it.snapshot_asset)
    it.mended()
    it.exact()


@drill(28, "a clear of a stopped processor is killed, and given up")
def clear_abandoned(it: Exercise) -> None:
    it.begin()
    it.home.cli("apply", "stop", it.name)
    it.broken()
    command = [sys.executable, "-c", KILLED_CLEAR, it.name]
    killed = subprocess.run(
        command, cwd=PROJECT, env={**os.environ, **it.home.environment}, capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    status = it.client.status()
    assert status is not None
    assert status.paused
    it.says(it.processor_asset, WORKING, "An apply was interrupted", "apply resume")
    it.act("apply", "abandon", str(it.open_apply().id), "--reason", "a drill", "--json")
    it.mended()
    assert it.client.status() is None, "it was stopped before"
    it.home.cli("apply", "deploy", it.name)
    it.exact()


@drill(29, "a changelog of another team's processor, whose name begins with this one's")
def neighbour(it: Exercise) -> None:
    it.begin()
    theirs = f"{it.name}-eu"
    it.topics.create(TopicSpec(f"{theirs}-in", PARTITIONS, 1))
    it.home.define(theirs, DEFINITION.format(group=theirs))
    other, feeder = it.home.beside(theirs), Feeder(it.topics.bootstrap, f"{theirs}-in")
    changelog = f"{theirs}-{STORE}-changelog"
    try:
        with other.verbs() as verbs:
            verbs.apply(verbs.plan(Deploy(theirs)), sure=True)
        for number in range(100):
            feeder.send(f"k{number % 10}")
        feeder.stop()
        wait_for(lambda: sum(it.topics.committed_offsets(theirs).values()) == 100, "the other processor to work")
        it.broken()
        it.refused(it.home, ("apply", "clean", "--only", f"topic/{changelog}", "--yes"), "names no orphan")
        it.result.acted("none: it is not an orphan")
        for number in range(100):
            feeder.send(f"k{number % 10}")
        feeder.flush()
        wait_for(lambda: sum(it.topics.committed_offsets(theirs).values()) == 200, "the other processor to go on")
        it.result.mended(0.0)
        with other.verbs() as verbs:
            assert [each.differences for each in verbs.audit(theirs, ())] == [()]
        other.cli("apply", "stop", theirs)
    finally:
        other.cli("down", check=False)
    it.exact()
