"""Drills with processes: killed, stopped or repeatedly crashing workers, a dead daemon, and a version that fails."""

from __future__ import annotations

import json
import os
import signal

from holdfast.assets.processors import HEALTHY
from holdfast.orchestration.host import local
from tests.drills.drilling import drill
from tests.drills.exercise import STORE, WORKING, Exercise
from tests.drills.patience import wait_for
from tests.parts.operated import DEFINITION


@drill(1, "processor killed with `kill -9`", quick=True)
def killed(it: Exercise) -> None:
    it.begin()
    it.broken()
    os.kill(it.pid, signal.SIGKILL)
    it.says(it.processor_asset, WORKING, "SIGKILL")
    it.mended()
    it.exact()


@drill(2, "processor stopped with SIGSTOP: stuck, not dead")
def stopped(it: Exercise) -> None:
    it.begin()
    it.broken()
    os.kill(it.pid, signal.SIGSTOP)
    it.says(it.processor_asset, WORKING, "no heartbeat")
    it.mended()
    it.exact()


@drill(3, "crash loop on a poison message")
def poison(it: Exercise) -> None:
    it.begin()
    it.broken()
    it.feeder.send("k0", b"no JSON at all", counted=False)
    it.says(it.processor_asset, WORKING, "can't be processed", "dead_letter_topic")
    # the user adds a dead-letter topic to the definition; the deploy of that code version is the repair
    text = DEFINITION.format(group=it.name).replace(
        "Application(", f'Application(dead_letter_topic="{it.name}-dead",', 1
    )
    it.home.define(it.name, text)
    it.act("apply", "deploy", it.name)
    it.mended()
    it.exact()
    assert [record.value for record in it.read(f"{it.name}-dead")] == [b"no JSON at all"]


@drill(19, "two recoveries asked at once")
def twice_recovered(it: Exercise) -> None:
    it.begin()
    it.broken()
    os.kill(it.pid, signal.SIGKILL)
    # wait for the recovery that the sensor requests; an earlier recovery would leave no failure to report
    it.says(it.processor_asset, WORKING, "SIGKILL")
    config = {"ops": {"recover_one": {"config": {"processor": it.name}}}}
    runs = [it.home.dagster.launch("recover_processor", config) for _ in range(2)]
    assert [it.home.dagster.ended(run) for run in runs] == ["SUCCESS"] * 2
    it.mended()
    it.exact()
    restarts = [note for incident in it.incidents() for note in incident.timeline if note.step == "restart"]
    assert len(restarts) == 1, f"one recovery acts, here {len(restarts)} did"


@drill(16, "Dagster's daemon killed in the middle of an apply")
def daemon_dies(it: Exercise) -> None:
    it.begin()
    words = ("backfill", it.name, "--store", STORE, "--from", "topic", "--json")
    plan = json.loads(it.home.cli("plan", *words, check=False).text)["hash"]
    config = {"processor": it.name, "store": STORE, "source": "topic", "dry_run": False, "confirm": plan}
    run = it.home.dagster.launch("backfill_store", {"ops": {"backfill_one": {"config": config}}})
    wait_for(lambda: it.open_apply(stages=1), "the apply to be under way")
    it.broken()
    kill_daemon(it)
    # in production, systemd or Kubernetes restarts the daemon; Dagster itself reports the interrupted run
    it.home.cli("up", "--json")
    it.says(it.processor_asset, WORKING, "An apply was interrupted", "apply resume")
    assert it.home.dagster.ended(run) == "FAILURE", "a run whose process is gone holds nothing up"
    it.act("apply", "resume", str(it.open_apply().id))
    it.mended()
    it.exact()


@drill(18, "bad deploy: the new version fails on messages that the old one processed")
def bad_deploy(it: Exercise) -> None:
    it.begin()
    text = DEFINITION.format(group=it.name)
    bad = text.replace('    state.set("n"', '    raise RuntimeError("a bug of this version")\n    state.set("n"', 1)
    assert bad != text
    it.home.define(it.name, bad)
    it.broken()
    assert it.materialise(it.processor_asset) == "FAILURE"
    it.says(it.processor_asset, HEALTHY, "was not started", "a bug of this version", "keeps running")
    it.processed()  # the former version processes these messages while the definition in the project still fails
    it.home.define(it.name, text)
    it.launch("__ASSET_JOB", {}, it.processor_asset)
    it.mended()
    it.exact()


def kill_daemon(it: Exercise) -> None:
    """Kill the daemon and all processes that it has started, as if its machine or container had died."""
    daemon = local.running(it.home.settings, local.DAEMON)
    assert daemon is not None
    os.killpg(daemon.pid, signal.SIGKILL)
    wait_for(lambda: local.running(it.home.settings, local.DAEMON) is None, "the daemon to be gone")
