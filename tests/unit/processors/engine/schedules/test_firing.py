"""Schedules fire once for each slot (scheduled time) of the worker's clock.

Kills, lost answers, pauses and new versions do not change this.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, Fate, InlineProcess, InMemoryCluster
from holdfast.processors.engine.runtime.owner_commands.commands import Clear
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.engine.schedules import firing
from holdfast.processors.engine.state.own_keys import SCHEDULES
from holdfast.processors.engine.state.time.window_keys import OWN_KEY
from tests.mechanics.tiers import variants
from tests.simulation.disk import SimulatedDisk
from tests.unit.processors.engine.runtime.test_idle import STEPS, Doomed, Faulty, Killed
from tests.window_lives import carry_out, settings_of

#: Seconds between two slots (scheduled times), and the start of the virtual clock in milliseconds.
S, BEGAN_MS = 10, 1_700_000_000_000


def build(state_dir: Path | None = None, every_s: float = S, **declared: Any) -> Application:
    """An application that stores a total by key, and sends the sum of the task's totals at each scheduled time."""
    options = {name: declared.pop(name) for name in ("commit_interval", "dead_letter_topic") if name in declared}
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_dir=state_dir, **options
    )

    def keep(value: Any, state: Any) -> Any:
        state.increment("total", value)
        return value

    app.dataframe(app.topic("in")).apply(keep, stateful=True, store="totals")

    @app.every(timedelta(seconds=every_s), to=app.topic("out"), **declared)
    def report(slot: Any) -> None:
        calls = slot.state.increment("calls")
        total = sum(entry.value for entry in slot.items("totals"))
        slot.send([(slot.time - BEGAN_MS) // 1000, total, calls, slot.missed], key=str(slot.partition).encode())

    return app


@pytest.fixture
def cluster() -> InMemoryCluster:
    return started(InMemoryCluster())


def started(made: InMemoryCluster, partitions: int = 1) -> InMemoryCluster:
    made.create_topic("in", partitions=partitions)
    made.create_topic("out")
    for key, number in ((b"a", 1), (b"b", 2), (b"a", 3)):
        made.produce("in", json.dumps(number).encode(), key)
    return made


def sent(cluster: InMemoryCluster) -> list[list[int]]:
    """The outputs, as (slot (scheduled time) in seconds, total, number of calls, number of missed slots)."""
    return [json.loads(record.value or b"") for _, record in cluster.read("out")]


def slots(cluster: InMemoryCluster) -> list[int]:
    return [each[0] for each in sent(cluster)]


def away(cluster: InMemoryCluster, seconds: float) -> None:
    InlineProcess(cluster.clock).sleep(seconds)


def test_each_slot_fires_once_with_its_outputs_and_its_state(cluster: InMemoryCluster) -> None:
    cluster.run(build(), quiet_s=35)
    assert sent(cluster) == [[10, 6, 1, 0], [20, 6, 2, 0], [30, 6, 3, 0]]
    assert {record.timestamp_ms for _, record in cluster.read("out")} == {BEGAN_MS + at * 1000 for at in (10, 20, 30)}
    kept = cluster.state(build(), "in-schedules")
    assert kept[b"report", "calls"] == 3
    assert kept[OWN_KEY, f"{SCHEDULES}report"] == {
        "slots": "schedule report: every 10000 ms, once for the processor",
        "upto": BEGAN_MS + 30_000,
        "last": BEGAN_MS + 30_000,
        "fired": 3,
        "missed": 0,
        "unfired": 0,
        "format": 1,
    }


def test_a_slot_is_of_the_processor_or_of_each_task() -> None:
    for per, keys in (("processor", [b"0"]), ("task", [b"0", b"1", b"2"])):
        cluster = started(InMemoryCluster(), partitions=3)
        cluster.run(build(per=per), quiet_s=15)
        assert sorted(record.key or b"" for _, record in cluster.read("out")) == keys
        assert sum(each[1] for each in sent(cluster)) <= 6
    assert sum(each[1] for each in sent(cluster)) == 6


@pytest.mark.parametrize(
    ("missed", "fired"),
    [
        ("once", [[10, 0], [40, 2], [50, 0]]),
        ("all", [[10, 0], [20, 0], [30, 0], [40, 0], [50, 0]]),
        ("none", [[10, 0], [50, 3]]),
    ],
)
def test_missed_slots_go_by_their_policy(cluster: InMemoryCluster, missed: str, fired: list[list[int]]) -> None:
    cluster.run(build(missed=missed), quiet_s=13)
    away(cluster, 41 - (cluster.clock.time() - BEGAN_MS / 1000))
    cluster.run(build(missed=missed), quiet_s=12)
    assert [[each[0], each[3]] for each in sent(cluster)] == fired
    kept = cluster.state(build(), "in-schedules")[OWN_KEY, f"{SCHEDULES}report"]
    assert (kept["fired"], kept["missed"]) == (len(fired), 5 - len(fired))


def test_a_backlog_of_missed_slots_takes_several_commits(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "FIRED_AT_ONCE", 7)
    cluster.run(build(missed="all"), quiet_s=5)
    away(cluster, 300)
    cluster.run(build(missed="all"), quiet_s=1)  # slots (scheduled times) that are due fire before the run ends
    assert slots(cluster) == [*range(10, slots(cluster)[-1] + 1, 10)]
    assert len(slots(cluster)) >= 30


def test_a_schedule_of_a_second_fires_each_second_with_a_commit_of_ten(cluster: InMemoryCluster) -> None:
    app = build(every_s=1, commit_interval=10.0)
    for number in range(40):  # messages arrive all the time and wait for their commit
        cluster.clock.call_later(0.2 * number, lambda: cluster.produce("in", b"1", b"a") and None)
    cluster.run(app, quiet_s=3)
    assert slots(cluster) == [*range(1, slots(cluster)[-1] + 1)]
    assert len(slots(cluster)) >= 10
    assert all(each[3] == 0 for each in sent(cluster))


def test_a_clock_that_is_set_back_fires_nothing_twice(cluster: InMemoryCluster) -> None:
    cluster.run(build(), quiet_s=25)
    cluster.clock.skew_s -= 3600
    cluster.run(build(), quiet_s=25)
    assert slots(cluster) == [10, 20]
    cluster.clock.skew_s += 3600
    cluster.run(build(), quiet_s=25)
    assert len(slots(cluster)) == len(set(slots(cluster))) > 3


def test_other_slots_begin_with_the_new_version(cluster: InMemoryCluster) -> None:
    cluster.run(build(missed="all"), quiet_s=15)
    away(cluster, 100)
    cluster.run(build(every_s=3, missed="all"), quiet_s=9)
    assert slots(cluster)[0] == 10
    began = cluster.clock.time() - BEGAN_MS / 1000 - 16
    # the 3 s schedule fires no slot (scheduled time) from the time before it was declared
    assert all(at > began for at in slots(cluster)[1:])
    cluster.run(build(every_s=3, missed="once"), quiet_s=1)  # the argument `missed` does not move scheduled times
    assert cluster.state(build(), "in-schedules")[OWN_KEY, f"{SCHEDULES}report"]["upto"] // 1000 % 3 == 0


@pytest.mark.parametrize("disk_lost", variants([True, False]))
@pytest.mark.parametrize("point", [*STEPS, "commit:before", "commit:sent", "commit:after"])
def test_a_kill_at_each_step_fires_a_slot_again_only_if_it_did_not_commit(
    tmp_path: Path, point: str, disk_lost: bool
) -> None:
    cluster, disk, make = started(InMemoryCluster()), SimulatedDisk(), lambda: build(tmp_path)
    live(cluster, disk, make, InlineProcess(cluster.clock), 5.0)
    with pytest.raises(Killed):
        # this process's first commit is the one in which the slot (scheduled time) fires, so the kill hits that commit
        live(cluster, disk, make, Doomed(cluster, point), 15.0)
    away(cluster, 60)
    live(cluster, SimulatedDisk() if disk_lost else disk, make, InlineProcess(cluster.clock), 12.0)
    found = slots(cluster)
    assert found == sorted(set(found))
    # The state counts the calls of the schedule's function, and each output has this count. The counts have no gap, so
    # the state has exactly the calls whose outputs were sent.
    assert [each[2] for each in sent(cluster)] == list(range(1, len(found) + 1))
    # a slot (scheduled time) that was not committed counts as missed, like the slots after it
    assert found[0] == 10 or found[0] >= 60
    assert sum(1 + each[3] for each in sent(cluster)) == found[-1] // 10


def live(
    cluster: InMemoryCluster, disk: SimulatedDisk, make: Callable[[], Application], process: InlineProcess, s: float
) -> None:
    databases = disk.attach(process)
    app = make()
    assert app.state_dir is not None
    try:
        app.run_on(cluster.connect(process), settings_of(app.state_dir), timeout=s, databases=databases)
    finally:
        process.frozen = True
        disk.release(process)


@pytest.mark.parametrize("fate", variants([Fate.REPLY_LOST, Fate.LOST, Fate.DELAYED]))
def test_an_answer_that_is_lost_is_settled_by_a_replay(tmp_path: Path, fate: Fate) -> None:
    network = Faulty("commit", fate)
    cluster, disk = started(InMemoryCluster(network=network)), SimulatedDisk()
    live(cluster, disk, lambda: build(tmp_path, missed="all"), InlineProcess(cluster.clock), 5.0)
    network.armed = True
    live(cluster, disk, lambda: build(tmp_path, missed="all"), InlineProcess(cluster.clock), 60.0)
    assert network.struck
    assert slots(cluster) == [*range(10, slots(cluster)[-1] + 1, 10)]
    assert [each[2] for each in sent(cluster)] == list(range(1, len(slots(cluster)) + 1))


def test_a_failed_slot_is_put_aside_and_its_writes_are_undone(cluster: InMemoryCluster) -> None:
    cluster.create_topic("dead")
    cluster.run(failing(dead_letter_topic="dead"), quiet_s=25)
    [(_, letter), _] = cluster.read("dead")
    headers = dict(letter.headers or ())
    assert json.loads(letter.value or b"") == {"schedule": "broken", "slot": BEGAN_MS + 10_000}
    assert headers["holdfast.schedule"] == b"broken"
    assert headers["holdfast.kind"] == b"schedule"
    assert headers["holdfast.error"] == b"at slot"
    assert slots(cluster) == []  # a failed call of the schedule's function sends no outputs
    kept = cluster.state(failing(), "in-schedules")
    assert [place for place in kept if place[0] != OWN_KEY] == []
    assert kept[OWN_KEY, f"{SCHEDULES}broken"]["fired"] == 2


def test_without_a_dead_letter_topic_a_failed_slot_stops_the_worker_and_stays(cluster: InMemoryCluster) -> None:
    with pytest.raises(
        ProcessingFailed, match=r"Schedule 'broken', slot .*:30.* fired .*ValueError: at slot"
    ) as failed:
        cluster.run(failing(), quiet_s=25)
    assert "Correct the function of the schedule" in failed.value.action
    assert slots(cluster) == []
    # messages that arrived before the slot (scheduled time) are processed first
    assert cluster.state(failing(), "totals") == {(b"a", "total"): 4, (b"b", "total"): 2}
    assert cluster.state(failing(), "in-schedules")[OWN_KEY, f"{SCHEDULES}broken"]["last"] is None


def failing(**options: Any) -> Application:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **options)

    def keep(value: Any, state: Any) -> Any:
        state.increment("total", value)
        return value

    app.dataframe(app.topic("in")).apply(keep, stateful=True, store="totals")

    @app.every(S * 1000, to=app.topic("out"))
    def broken(slot: Any) -> None:
        slot.state.set("half", "done")
        slot.send("sent")
        raise ValueError("at slot")

    return app


def test_a_paused_worker_fires_nothing_and_resumes_with_what_was_missed(cluster: InMemoryCluster) -> None:
    app = build()
    cluster.clock.call_later(5, lambda: worker_of(app).pause())
    cluster.clock.call_later(47, lambda: worker_of(app).resume())
    cluster.clock.call_later(55, app.stop)
    cluster.run(app, quiet_s=100)
    assert [[each[0], each[3]] for each in sent(cluster)] == [[40, 3], [50, 0]]


def worker_of(app: Application) -> Any:
    return app._worker


def test_a_store_that_a_command_clears_begins_anew(cluster: InMemoryCluster) -> None:
    cluster.run(build(missed="all"), quiet_s=25)
    carry_out(cluster, build(missed="all"), Clear(store="in-schedules", all=True))
    away(cluster, 100)
    cluster.run(build(missed="all"), quiet_s=25)
    found = slots(cluster)
    assert found[:2] == [10, 20]
    # Scheduled times since the clear do not count as missed, because the clear also removed the record of the last time
    # at which the schedule fired.
    assert found[2] > 100
