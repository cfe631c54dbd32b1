"""Windows of silent inputs close once, without a further message. The commit that closes them moves no offset.

This also holds if the first attempt of the commit fails.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, Fate, InlineProcess, InMemoryCluster, Network, Partition, load_settings
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import CheckpointSettings
from tests.simulation.disk import SimulatedDisk

#: Seconds of silence after which windows close. They are fewer than the seconds after which the broker aborts an open
#: transaction.
IDLE_S = 6


def build(state_dir: Path | None = None, *topics: str) -> Application:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_dir=state_dir)
    for name in topics or ("in",):
        frame = app.dataframe(app.topic(name))
        if topics:  # a shared store puts all inputs into one task
            frame = frame.apply(lambda value, state: value, stateful=True, store="joint")
        window = frame.tumbling_window(10_000, name=f"w-{name}").count()
        window.final("partition", close_when_idle=timedelta(seconds=IDLE_S)).to_topic(app.topic("out"))
    return app


@pytest.fixture
def cluster() -> InMemoryCluster:
    return started(InMemoryCluster())


def started(cluster: InMemoryCluster) -> InMemoryCluster:
    cluster.create_topic("in")
    for key in (b"a", b"b", b"a"):
        cluster.produce("in", b"1", key)
    return cluster


def results(cluster: InMemoryCluster) -> list[tuple[bytes | None, Any]]:
    return [(record.key, json.loads(record.value or b"")["value"]) for _, record in cluster.read("out")]


def test_windows_close_after_the_silence_and_not_before(cluster: InMemoryCluster) -> None:
    cluster.run(build(), quiet_s=IDLE_S - 2)
    assert results(cluster) == []
    committed = cluster.committed_offsets("g")
    cluster.run(build(), quiet_s=IDLE_S + 10)
    assert results(cluster) == [(b"a", 2), (b"b", 1)]
    assert cluster.committed_offsets("g") == committed
    cluster.run(build(), quiet_s=10 * IDLE_S)
    assert len(results(cluster)) == 2


def test_a_message_for_a_window_that_closed_so_is_late(cluster: InMemoryCluster) -> None:
    began_ms = int(cluster.clock.time() * 1000)
    cluster.run(build(), quiet_s=IDLE_S + 10)
    cluster.produce("in", b"1", b"a", timestamp_ms=began_ms)
    cluster.run(build(), quiet_s=2 * IDLE_S)
    assert results(cluster) == [(b"a", 2), (b"b", 1)]


def test_an_open_transaction_of_the_producer_is_no_end(cluster: InMemoryCluster) -> None:
    open_one = cluster.open_foreign_transaction("in", 0, [(b"a", b"1")])
    cluster.run(build(), quiet_s=2 * IDLE_S)
    assert results(cluster) == []
    open_one.abort()  # the aborted record and its marker are a gap at the end of the log
    cluster.run(build(), quiet_s=3 * IDLE_S)
    assert results(cluster) == [(b"a", 2), (b"b", 1)]


def test_all_inputs_of_a_task_must_be_silent(cluster: InMemoryCluster) -> None:
    cluster.create_topic("more")
    held = cluster.open_foreign_transaction("more", 0, [(b"c", b"1")])
    cluster.run(build(None, "in", "more"), quiet_s=2 * IDLE_S)
    assert results(cluster) == []
    held.commit()
    cluster.run(build(None, "in", "more"), quiet_s=3 * IDLE_S)
    assert sorted(results(cluster)) == [(b"a", 2), (b"b", 1), (b"c", 1)]


def test_time_passes_for_all_windows_of_a_task_after_the_shortest_silence(cluster: InMemoryCluster) -> None:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    frame = app.dataframe(app.topic("in"))
    for name, seconds in (("never", None), ("soon", IDLE_S), ("later", 1_000)):
        idle = None if seconds is None else timedelta(seconds=seconds)
        window = frame.tumbling_window(10_000, name=name).count().final("partition", close_when_idle=idle)
        window.apply(lambda result, name=name: {**result, "value": name}).to_topic(app.topic("out"))
    cluster.run(app, quiet_s=IDLE_S + 10)
    assert {name for _, name in results(cluster)} == {"never", "soon", "later"}


def test_it_does_not_fit_windows_that_are_closed_by_their_keys() -> None:
    app = Application("in-memory", consumer_group="g", loglevel=None)
    window = app.dataframe(app.topic("in")).tumbling_window(10).count()
    with pytest.raises(HoldfastError, match="only messages of a key move its time"):
        window.final(close_when_idle=1_000)
    with pytest.raises(HoldfastError, match="`close_when_idle` is 0"):
        window.final("partition", close_when_idle=0)


class Killed(BaseException):
    """Raised in place of a kill: the process ends."""


class Doomed(InlineProcess):
    """A process that is killed when a call to the cluster first reaches the named point, for example "commit:sent"."""

    def __init__(self, cluster: InMemoryCluster, point: str) -> None:
        super().__init__(cluster.clock)
        self._point = point
        self.died = False

    def point(self, name: str) -> None:
        if self.frozen or name == self._point:
            self.frozen = self.died = True
            raise Killed


STEPS = ("produce:before", "flush:before", "flush:after", "send_offsets:before", "send_offsets:after")


@pytest.mark.parametrize("disk_lost", [False, True])
@pytest.mark.parametrize("point", [*STEPS, "commit:before", "commit:sent", "commit:after"])
def test_a_kill_at_each_step_of_the_commit_loses_and_doubles_nothing(
    cluster: InMemoryCluster, tmp_path: Path, point: str, disk_lost: bool
) -> None:
    disk = SimulatedDisk()
    live(cluster, disk, tmp_path, InlineProcess(cluster.clock), 3.0)
    doomed = Doomed(cluster, point)
    with pytest.raises(Killed):
        # the first commit of this process closes the windows after the silence
        live(cluster, disk, tmp_path, doomed, 2.0 * IDLE_S)
    InlineProcess(cluster.clock).sleep(60)  # wait until the session of the killed member has expired
    live(cluster, SimulatedDisk() if disk_lost else disk, tmp_path, InlineProcess(cluster.clock), 2.0 * IDLE_S)
    assert results(cluster) == [(b"a", 2), (b"b", 1)]


class Faulty(Network):
    """A simulated network that fails one request.

    While ``armed`` is true, the first request with the name ``request`` is lost, is delayed, or loses its reply, as
    ``fate`` says.
    """

    def __init__(self, request: str, fate: Fate) -> None:
        super().__init__()
        self._request, self._fate = request, fate
        self.armed = self.struck = False

    def fate(self, process: str, request: str) -> Fate:
        if self.armed and not self.struck and request == self._request:
            self.struck = True
            return self._fate
        return Fate.OK


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.REPLY_LOST, Fate.DELAYED])
@pytest.mark.parametrize("request_", ["send_offsets", "commit"])
def test_an_answer_that_is_lost_is_settled_by_a_replay(tmp_path: Path, request_: str, fate: Fate) -> None:
    network = Faulty(request_, fate)
    cluster, disk = started(InMemoryCluster(network=network)), SimulatedDisk()
    live(cluster, disk, tmp_path, InlineProcess(cluster.clock), 3.0)
    network.armed = True
    live(cluster, disk, tmp_path, InlineProcess(cluster.clock), 10.0 * IDLE_S)
    assert network.struck
    assert results(cluster) == [(b"a", 2), (b"b", 1)]
    assert cluster.committed_offsets("g") == {Partition("in", 0): 3}


def live(cluster: InMemoryCluster, disk: SimulatedDisk, home: Path, process: InlineProcess, silence_s: float) -> None:
    settings: Any = load_settings(home=home, checkpoints=CheckpointSettings(enabled=False))
    databases = disk.attach(process)
    try:
        build(home).run_on(cluster.connect(process), settings, timeout=silence_s, databases=databases)
    finally:
        process.frozen = True
        disk.release(process)
