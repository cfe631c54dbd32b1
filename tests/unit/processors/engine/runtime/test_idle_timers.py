"""A commit that only fires timers moves no offset.

A kill at any step of the commit, or a lost answer, must not fire the timers twice.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, Fate, InlineProcess, InMemoryCluster, Partition, load_settings
from holdfast.infra.settings import CheckpointSettings
from holdfast.processors.engine.checkpoints import decision
from holdfast.processors.engine.runtime.options import Start
from tests.simulation.disk import SimulatedDisk
from tests.unit.processors.engine.runtime.test_idle import STEPS, Doomed, Faulty, Killed

#: Seconds until the timers fire. They are fewer than the seconds after which the broker aborts an open transaction.
AFTER_S = 6


class Silent:
    def on_message(self, value: Any, context: Any) -> None:
        context.state.increment("messages")
        context.set_timer("silent", at=timedelta(seconds=AFTER_S), clock="processing")

    def on_timer(self, name: str, time: int, context: Any) -> None:
        context.emit([context.key.decode(), context.state.pop("messages")])


def build(state_dir: Path) -> Application:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_dir=state_dir)
    app.dataframe(app.topic("in")).process(Silent, store="s").to_topic(app.topic("out"))
    return app


def started(cluster: InMemoryCluster) -> InMemoryCluster:
    cluster.create_topic("in")
    for key in (b"a", b"b", b"a"):
        cluster.produce("in", b"1", key)
    return cluster


def results(cluster: InMemoryCluster) -> list[bytes | None]:
    return sorted(record.value or b"" for _, record in cluster.read("out"))


def live(cluster: InMemoryCluster, disk: SimulatedDisk, home: Path, process: InlineProcess, silence_s: float) -> None:
    settings: Any = load_settings(home=home, checkpoints=CheckpointSettings(enabled=False))
    databases = disk.attach(process)
    try:
        build(home).run_on(cluster.connect(process), settings, timeout=silence_s, databases=databases)
    finally:
        process.frozen = True
        disk.release(process)


@pytest.mark.parametrize("disk_lost", [False, True])
@pytest.mark.parametrize("point", [*STEPS, "commit:before", "commit:sent", "commit:after"])
def test_a_kill_at_each_step_loses_and_doubles_no_timer(tmp_path: Path, point: str, disk_lost: bool) -> None:
    cluster, disk = started(InMemoryCluster()), SimulatedDisk()
    live(cluster, disk, tmp_path, InlineProcess(cluster.clock), 1.0)
    assert results(cluster) == []
    doomed = Doomed(cluster, point)
    with pytest.raises(Killed):
        live(cluster, disk, tmp_path, doomed, 2.0 * AFTER_S)  # the first commit of this process fires the timers
    InlineProcess(cluster.clock).sleep(60)  # wait until the session of the killed member has expired
    live(cluster, SimulatedDisk() if disk_lost else disk, tmp_path, InlineProcess(cluster.clock), 2.0 * AFTER_S)
    assert results(cluster) == [b'["a",2]', b'["b",1]']
    assert cluster.committed_offsets("g") == {Partition("in", 0): 3}


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.REPLY_LOST, Fate.DELAYED])
@pytest.mark.parametrize("request_", ["send_offsets", "commit"])
def test_an_answer_that_is_lost_is_settled_by_a_replay(tmp_path: Path, request_: str, fate: Fate) -> None:
    network = Faulty(request_, fate)
    cluster, disk = started(InMemoryCluster(network=network)), SimulatedDisk()
    live(cluster, disk, tmp_path, InlineProcess(cluster.clock), 1.0)
    network.armed = True
    live(cluster, disk, tmp_path, InlineProcess(cluster.clock), 10.0 * AFTER_S)
    assert network.struck
    assert results(cluster) == [b'["a",2]', b'["b",1]']
    assert cluster.committed_offsets("g") == {Partition("in", 0): 3}


def test_a_checkpoint_has_timers_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decision, "SPARES_AT_LEAST", 1)
    settings = load_settings(home=tmp_path, checkpoints=CheckpointSettings(enabled=True))
    cluster = started(InMemoryCluster())
    for name, silence_s in (("first", 1.0), ("second", 2.0 * AFTER_S)):
        process = InlineProcess(cluster.clock)
        build(tmp_path / name).run_on(cluster.connect(process), settings, timeout=silence_s)
        process.frozen = True
        process.sleep(60)
    assert results(cluster) == [b'["a",2]', b'["b",1]']
    assert "state begins with a checkpoint" in "".join(capsys.readouterr())


def test_state_in_memory_has_timers_as_well(tmp_path: Path) -> None:
    cluster = started(InMemoryCluster())
    for silence_s in (1.0, 2.0 * AFTER_S):
        app = Application(
            "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_backend="memory"
        )
        app.dataframe(app.topic("in")).process(Silent, store="s").to_topic(app.topic("out"))
        cluster.run(app, quiet_s=silence_s)
    assert results(cluster) == [b'["a",2]', b'["b",1]']


def test_a_paused_worker_fires_nothing_and_what_was_due_fires_afterwards(tmp_path: Path) -> None:
    cluster = started(InMemoryCluster())
    cluster.run(build(tmp_path), quiet_s=1.0)
    paused = build(tmp_path)
    paused.with_run_overrides(slot=None, auto_create_topics=True, start=Start(paused=True))
    cluster.run(paused, quiet_s=3.0 * AFTER_S)
    assert results(cluster) == []
    cluster.run(build(tmp_path), quiet_s=1.0)
    assert results(cluster) == [b'["a",2]', b'["b",1]']
