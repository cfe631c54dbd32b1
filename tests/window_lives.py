"""Lives of an application with windows: kills at points that a seed chooses, lost disks, restarts, rebalances."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import copy
from pathlib import Path
from random import Random
from typing import Any

from holdfast import Application, InlineProcess, InMemoryCluster, Settings, load_settings
from holdfast.infra.settings import CheckpointSettings
from tests.simulation.disk import SimulatedDisk
from tests.windowing import Event

POINTS = (
    "produce",
    "flush:before",
    "flush:after",
    "send_offsets:after",
    "commit:before",
    "commit:sent",
    "commit:after",
)


class Killed(BaseException):
    """The end of a process."""


class Doomed(InlineProcess):
    """Dies when it comes to a point for the n-th time."""

    def __init__(self, cluster: InMemoryCluster, point: str, times: int) -> None:
        super().__init__(cluster.clock)
        self._point, self._left = point, times

    def point(self, name: str) -> None:
        if self.frozen:
            raise Killed
        if name == self._point:
            self._left -= 1
            if self._left == 0:
                self.frozen = True
                raise Killed


def world() -> tuple[InMemoryCluster, int]:
    """A cluster whose world is 100,000 s old, so that event times may begin at 0; and its time in milliseconds."""
    cluster = InMemoryCluster()
    cluster.clock.skew_s = 100_000 - 1_700_000_000
    for topic in ("in", "out"):
        cluster.create_topic(topic, config={"message.timestamp.after.max.ms": str(2**62)})
    return cluster, int(cluster.clock.time() * 1000)


def live_through(
    cluster: InMemoryCluster, app: Application, events: Iterable[Event], random: Random, silence_s: float = 3.0
) -> list[tuple[bytes, Any]]:
    """Several processes, one after the other, that process all events; the keys and values in the output topic."""
    disk = SimulatedDisk()
    for event in events:
        if random.random() < 0.02:
            live(cluster, app, disk, random)
        cluster.produce("in", json.dumps({"v": event.amount}).encode(), event.key, timestamp_ms=event.time_ms)
    for _ in range(3):
        live(cluster, app, disk if random.random() < 0.5 else SimulatedDisk(), random, silence_s)
    live(cluster, app, SimulatedDisk(), None, silence_s)
    return [(record.key or b"", json.loads(record.value or b"")) for _, record in cluster.read("out")]


def live(
    cluster: InMemoryCluster, app: Application, disk: SimulatedDisk, random: Random | None, silence_s: float = 3.0
) -> None:
    """One process: it dies at a point that the seed chooses, or processes everything."""
    process = InlineProcess(cluster.clock)
    if random is not None and random.random() < 0.7:
        process = Doomed(cluster, random.choice(POINTS), random.randint(1, 8))
    assert app.state_dir is not None
    settings, databases = settings_of(app.state_dir), disk.attach(process)
    try:
        copy(app).run_on(cluster.connect(process), settings, timeout=silence_s, databases=databases)
    except Killed:
        pass
    finally:
        process.frozen = True
        disk.release(process)
    InlineProcess(cluster.clock).sleep(60)  # until the session of a dead member has ended


def settings_of(home: Path) -> Settings:
    return load_settings(home=home, checkpoints=CheckpointSettings(enabled=False))
