"""Drills around processors: the broker restarts or is down, Holdfast's database is lost, the disk is full."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from tests.drills.drilling import drill
from tests.drills.exercise import WORKING, Exercise
from tests.drills.patience import wait_for

REGISTERED = "registered"
AWAY_S = 180.0


@drill(13, "broker restarted")
def broker_restarted(it: Exercise) -> None:
    it.begin()
    it.broken()
    it.home.broker.stop()
    it.says(it.processor_asset, WORKING, "broker")
    it.act_outside("the broker is started", it.home.broker.start)
    it.mended()
    it.exact()


@drill(14, "broker away for 3 minutes")
def broker_away(it: Exercise) -> None:
    it.begin()
    it.broken()
    it.home.broker.stop()
    it.says(it.processor_asset, WORKING, "broker")
    wait_for(lambda: time.time() - it.broke_at >= AWAY_S, "three minutes to pass")
    it.act_outside("the broker is started", it.home.broker.start)
    it.mended()
    it.exact()
    assert all(incident.attempts <= 1 for incident in it.incidents()), "waiting uses no attempts up"


@drill(12, "disk full", alone=True)
def disk_full(it: Exercise) -> None:
    it.begin()
    ballast = it.home.settings.paths.state / "ballast"
    it.broken()
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    it.says(it.processor_asset, WORKING, "disk is full")
    it.act_outside("room is made on the disk", ballast.unlink)
    it.mended()
    it.exact()
    assert all(incident.attempts <= 1 for incident in it.incidents()), "waiting uses no attempts up"


@drill(15, "registry's database lost")
def registry_lost(it: Exercise) -> None:
    it.begin()
    it.broken()
    for file in it.home.settings.home.glob("registry.db*"):
        file.unlink()
    it.says(it.processor_asset, REGISTERED, "adopted", it.name)
    # Holdfast's database was rebuilt without an operator. If recovery now restarts a killed processor, the database is
    # complete.
    killed_at = time.time()
    os.kill(it.pid, signal.SIGKILL)
    it.red_since(it.processor_asset, WORKING, killed_at)
    it.result.mended(it.green(it.processor_asset, WORKING, since=killed_at) - killed_at)
    it.exact()
