"""Runs an application with windows through random kills (from a seed), lost disks, restarts and rebalances."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import copy
from pathlib import Path
from random import Random
from typing import Any

from holdfast import Application, InlineProcess, InMemoryCluster, Settings, load_settings
from holdfast.infra.settings import CheckpointSettings
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta
from holdfast.processors.engine.commands.table import COMMANDS
from holdfast.processors.engine.runtime.owner_commands.commands import Adopt, Command
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
from holdfast.processors.engine.state.exports import entry_of
from tests.oracles.window_rules import Event
from tests.simulation.disk import SimulatedDisk

POINTS = (
    "produce",
    "flush:before",
    "flush:after",
    "send_offsets:after",
    "commit:before",
    "commit:sent",
    "commit:after",
)

#: Seconds without a message after which a process stops. The process stops before any window closes because its input
#: is silent.
SHORT_S = 3.0


class Killed(BaseException):
    """Raised in place of a crash: the process ends here."""


class Doomed(InlineProcess):
    """A process that is killed when it reaches the named point of a client call, like "poll", for the n-th time."""

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
    """A cluster whose clock starts at 100,000 s after 1970, so that event times may start at 0.

    Also returns the time of that clock in milliseconds.
    """
    cluster = InMemoryCluster()
    cluster.clock.skew_s = 100_000 - 1_700_000_000
    for topic in ("in", "out", "dead"):
        cluster.create_topic(topic, config={"message.timestamp.after.max.ms": str(2**62)})
    return cluster, int(cluster.clock.time() * 1000)


def live_through(
    cluster: InMemoryCluster, app: Application, events: Iterable[Event], random: Random, silence_s: float = SHORT_S
) -> list[tuple[bytes, Any]]:
    """Process all events in several processes, one after the other. Returns keys and values of the output topic.

    The last process ends after ``silence_s`` without a message. With the default ``silence_s``, one call in two (chosen
    at random) holds back the second half of the events until just before the last process starts. In this case, the
    last process ends after the last message.
    """
    disk, waiting = SimulatedDisk(), list(events)
    held_back = waiting[len(waiting) // 2 :] if silence_s == SHORT_S and random.random() < 0.5 else []
    for event in waiting[: len(waiting) - len(held_back)]:
        if random.random() < 0.02:
            live(cluster, app, disk, random)
        _send(cluster, event)
    for _ in range(3):
        live(cluster, app, disk if random.random() < 0.5 else SimulatedDisk(), random, silence_s)
    for event in held_back:
        _send(cluster, event)
    left = len(cluster.read("in")) - sum(cluster.committed_offsets("g").values())
    live(cluster, app, SimulatedDisk(), None, silence_s, left if held_back else 0)
    return [(record.key or b"", json.loads(record.value or b"")) for _, record in cluster.read("out")]


def unlucky(result: dict[str, Any]) -> dict[str, Any]:
    """A step behind a window. It raises an error for about a third of the window's results."""
    if result["total"] % 3 == 0:
        raise ValueError("an unlucky result")
    return result


def put_aside(cluster: InMemoryCluster) -> list[tuple[bytes, Any]]:
    """Keys and values of the dead letters, each of which is a result that ``unlucky`` refuses."""
    letters = [(record.key or b"", json.loads(record.value or b"")) for _, record in cluster.read("dead")]
    assert all(letter.get("total", 1) % 3 == 0 for _, letter in letters)
    return letters


def _send(cluster: InMemoryCluster, event: Event) -> None:
    cluster.produce("in", json.dumps({"v": event.amount}).encode(), event.key, timestamp_ms=event.time_ms)


def live(
    cluster: InMemoryCluster,
    app: Application,
    disk: SimulatedDisk,
    random: Random | None,
    silence_s: float = SHORT_S,
    count: int = 0,
) -> None:
    """Run one process until it is killed at a random point, has read all messages, or has read ``count`` messages."""
    process = InlineProcess(cluster.clock)
    if random is not None and random.random() < 0.7:
        process = Doomed(cluster, random.choice(POINTS), random.randint(1, 8))
    assert app.state_dir is not None
    settings, databases = settings_of(app.state_dir), disk.attach(process)
    try:
        copy(app).run_on(cluster.connect(process), settings, count=count, timeout=silence_s, databases=databases)
    except Killed:
        pass
    finally:
        process.frozen = True
        disk.release(process)
    InlineProcess(cluster.clock).sleep(60)  # wait until the session of a killed group member has expired


def settings_of(home: Path) -> Settings:
    return load_settings(home=home, checkpoints=CheckpointSettings(enabled=False))


def carry_out(cluster: InMemoryCluster, app: Application, command: Command) -> dict[str, Any]:
    """Return the result of a command that a paused worker carries out on the stores that it owns.

    ``lines`` holds the lines of the export file, if the command writes one.
    """
    told: dict[str, Any] = {}

    def errand(worker: Owner, ticket: Ticket) -> Work:
        worker.maintenance.waits = True  # the worker must wait, so that the simulated time passes
        while not worker.assignment.tasks or not all(task.running for task in worker.assignment.tasks):
            yield
        worker.maintenance.waits = False
        worker.pause()  # type: ignore[attr-defined]
        yield
        done = yield from COMMANDS.work_of(command, worker, ticket)
        file = done.get("export", done).get("path")
        told.update(done, lines=[] if file is None else Path(file).read_bytes().splitlines())
        worker.stop()
        return done

    app._errand = errand
    cluster.run(app)
    return told


def put_back(cluster: InMemoryCluster, app: Application, store: str, lines: Iterable[bytes]) -> dict[str, Any]:
    """Write the entries of an export file to a store, like ``restore --from-file``."""
    entries = [entry for number, line in enumerate(lines, 1) if (entry := entry_of(line, number)).store == store]
    changelog = f"{store}-export-{cluster.clock.monotonic()}"
    cluster.create_topic(changelog)
    for entry in entries:
        cluster.produce(changelog, entry.stored, entry.key)
    cluster.produce(changelog, ChangelogMeta({}, 0, "").encode(), META_KEY)
    upto = {0: len(cluster.read(changelog))}
    return carry_out(cluster, app, Adopt(store=store, changelog=changelog, upto=upto, keep=True))


def stored(cluster: InMemoryCluster, app: Application, store: str) -> dict[bytes, bytes]:
    """The latest stored value of each key of a store, read from its changelog."""
    found: dict[bytes, bytes] = {}
    changelog = app.topology().changelog_of(store)
    assert changelog is not None
    for _, record in cluster.read(changelog.name):
        if record.key is not None and record.key != META_KEY:
            found.pop(record.key, None)
            if record.value is not None:
                found[record.key] = record.value
    return found
