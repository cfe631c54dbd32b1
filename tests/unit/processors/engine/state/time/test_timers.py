"""Timers fire once, in order, between messages and without a message, and are deleted with their key."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.runtime.owner_commands.commands import Clear, Position
from holdfast.processors.engine.runtime.task import task_timers
from holdfast.processors.engine.serving import status as serving
from holdfast.processors.engine.serving.status import ProcessorStatus, TimersStatus, describe_worker, together
from holdfast.processors.engine.state.own_keys import CLOCK_OF_STORE
from holdfast.processors.engine.state.time.window_keys import OWN_KEY
from tests.window_lives import carry_out

#: The event time of the first message in milliseconds.
T = 1_690_000_000_000


class Told:
    """A processor that carries out the calls in a message, ``[call, *arguments]``. Times are relative to ``T``."""

    def on_message(self, value: Any, context: Any) -> None:
        for name, *rest in value:
            getattr(self, name)(context, *rest)
        context.emit(["message", context.timestamp - T])

    def on_timer(self, name: str, time: int, context: Any) -> None:
        then = context.state.pop(f"then/{name}", ())
        for call, *rest in then:
            getattr(self, call)(context, *rest)
        assert context.timestamp == time
        assert context.headers is None
        context.emit([name, time - T])

    def set(self, context: Any, name: str, at: int, clock: str = "stream") -> None:
        context.set_timer(name, T + at, clock=clock)

    def then(self, context: Any, name: str, *steps: Any) -> None:
        context.state.set(f"then/{name}", steps)

    def cancel(self, context: Any, name: str) -> None:
        context.emit(["cancelled", context.cancel_timer(name)])

    def list(self, context: Any, *arguments: Any) -> None:
        context.emit([[each.name, each.time - T, each.clock] for each in context.timers(*arguments)])

    def after(self, context: Any, name: str, seconds: int, clock: str = "stream") -> None:
        context.set_timer(name, timedelta(seconds=seconds), clock=clock)

    def fail(self, context: Any) -> None:
        context.emit("never")
        context.state.set("never", 1)
        raise ValueError("as told")


def build(state_dir: Path | None = None, **settings: Any) -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        state_dir=state_dir,
        **{"dead_letter_topic": "dead", **settings},
    )
    app.dataframe(app.topic("in")).process(Told, store="s").to_topic(app.topic("out"))
    return app


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        made.create_topic(topic)
    return made


def send(cluster: InMemoryCluster, at: int, *steps: Any, key: bytes = b"a") -> None:
    cluster.produce("in", json.dumps(steps).encode(), key, timestamp_ms=T + at)


def results(cluster: InMemoryCluster, *, keys: bool = False) -> list[Any]:
    found = [(record.key, json.loads(record.value or b"")) for _, record in cluster.read("out")]
    return found if keys else [value for _, value in found]


def fired(cluster: InMemoryCluster) -> list[Any]:
    return [value for value in results(cluster) if value and value[0] not in ("message", "cancelled")]


def own(cluster: InMemoryCluster, app: Application | None = None) -> set[Any]:
    return set(cluster.state(app or build(), "s")) - {(OWN_KEY, CLOCK_OF_STORE)}


def errors(cluster: InMemoryCluster) -> list[str]:
    return [(dict(each.headers or ())["holdfast.error"] or b"").decode() for _, each in cluster.read("dead")]


def test_a_timer_fires_behind_the_message_that_moves_the_time_and_before_the_next(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "x", 10])
    for at in (9, 10, 11):
        send(cluster, at, key=b"b")
    cluster.run(build())
    sent = [(b"a", ["message", 0]), (b"b", ["message", 9]), (b"b", ["message", 10]), (b"a", ["x", 10])]
    assert results(cluster, keys=True) == [*sent, (b"b", ["message", 11])]
    [timer] = [record for _, record in cluster.read("out") if json.loads(record.value or b"")[0] == "x"]
    assert timer.timestamp_ms == T + 10
    assert own(cluster) == set()


def test_they_fire_in_the_order_of_time_key_and_name(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "y", 5], ["set", "x", 5], ["set", "z", 4], key=b"b")
    send(cluster, 0, ["set", "y", 5], key=b"a")
    send(cluster, 0, ["set", "w", 5], key=b"ab")
    send(cluster, 100)
    cluster.run(build())
    found = [(key, value[0]) for key, value in results(cluster, keys=True) if value[0] != "message"]
    assert found == [(b"b", "z"), (b"a", "y"), (b"ab", "w"), (b"b", "x"), (b"b", "y")]


def test_a_timer_is_replaced_cancelled_and_listed(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "x", 5], ["set", "y", 6], ["set", "a/1", 7, "processing"], ["set", "x", 50])
    send(cluster, 1, ["list"], ["list", "a/"], ["list", "", 1], ["cancel", "y"], ["cancel", "none"])
    send(cluster, 1, ["list"], key=b"b")
    send(cluster, 20)
    send(cluster, 60)
    cluster.run(build())
    everything = [["a/1", 7, "processing"], ["x", 50, "stream"], ["y", 6, "stream"]]
    assert results(cluster)[1:6] == [
        everything,
        everything[:1],
        everything[:1],
        ["cancelled", True],
        ["cancelled", False],
    ]
    assert results(cluster)[7] == []
    assert sorted(fired(cluster)[-2:]) == [["a/1", 7], ["x", 50]]
    assert own(cluster) == set()


def test_a_timer_in_the_past_fires_once_at_the_next_opportunity(cluster: InMemoryCluster) -> None:
    send(cluster, 100)
    send(cluster, 101, ["set", "x", 5], ["set", "y", 4])
    send(cluster, 101)
    cluster.run(build())
    assert results(cluster) == [["message", 100], ["message", 101], ["y", 4], ["x", 5], ["message", 101]]


def test_timers_set_by_timers_come_in_their_order(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "x", 5], ["then", "x", ["set", "y", 7], ["cancel", "c"]], ["set", "c", 6], ["set", "z", 9])
    send(cluster, 100)
    cluster.run(build())
    assert fired(cluster) == [["x", 5], ["y", 7], ["z", 9]]
    assert own(cluster) == set()


def test_a_timer_that_would_fire_over_and_over_is_refused(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "x", 5], ["then", "x", ["set", "x", 5]], ["set", "y", 6])
    send(cluster, 100)
    cluster.run(build())
    assert fired(cluster) == [["y", 6]]
    assert "expected a later time" in errors(cluster)[0]


def test_a_timer_that_fails_goes_by_the_failure_policy(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "x", 5], ["then", "x", ["fail"]], ["set", "y", 6])
    send(cluster, 100)
    cluster.run(build())
    assert fired(cluster) == [["y", 6]]
    [(_, dead)] = cluster.read("dead")
    assert (dead.key, json.loads(dead.value or b"")) == (b"a", {"timer": "x", "time": T + 5, "clock": "stream"})
    assert dict(dead.headers or ())["holdfast.timer"] == b"x"
    assert own(cluster) == {(b"a", "then/x")}  # the writes of the failed timer are undone


def test_without_dead_letters_a_timer_that_fails_stops_the_worker_and_stays(
    cluster: InMemoryCluster, tmp_path: Path
) -> None:
    send(cluster, 0, ["set", "w", 4], ["set", "x", 5], ["then", "x", ["fail"]], ["set", "y", 6])
    send(cluster, 100)
    for _ in range(2):
        with pytest.raises(HoldfastError) as stopped:
            cluster.run(build(tmp_path, dead_letter_topic=None))
        assert stopped.value.message == (
            "Timer 'x' of key b'a', set to 2023-07-22T04:26:40.005+00:00 by stream time, fired behind the message at "
            "in[0] offset 1 and raised ValueError: as told. The timer's state writes are undone; the messages before "
            "it are committed."
        )
        assert "The message at that offset is not the cause." in stopped.value.action
        assert "`on_timer`" in stopped.value.action
    assert fired(cluster) == [["w", 4]]
    cluster.run(build(tmp_path))
    assert fired(cluster) == [["w", 4], ["y", 6]]


def test_a_message_that_fails_sets_and_cancels_nothing(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "x", 5])
    send(cluster, 1, ["set", "y", 3], ["cancel", "x"], ["fail"])
    send(cluster, 10)
    cluster.run(build())
    assert fired(cluster) == [["x", 5]]


def test_timers_of_the_worker_s_clock_fire_without_a_message(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["after", "x", 5, "processing"])
    cluster.run(build(), quiet_s=3)
    assert fired(cluster) == []
    committed = cluster.committed_offsets("g")
    cluster.run(build(), quiet_s=10)
    assert [name for name, _ in fired(cluster)] == ["x"]
    assert cluster.committed_offsets("g") == committed
    cluster.run(build(), quiet_s=60)
    assert len(fired(cluster)) == 1


def test_missed_ones_fire_once_after_a_restart(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["after", "x", 5, "processing"], ["after", "y", 3, "processing"])
    cluster.run(build(), quiet_s=1)
    cluster.advance(3_600)
    cluster.run(build(), quiet_s=3)
    assert [name for name, _ in fired(cluster)] == ["y", "x"]
    cluster.run(build(), quiet_s=3)
    assert len(fired(cluster)) == 2


def test_a_clear_of_a_key_deletes_its_timers_and_no_others(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "x", 5], key=b"a")
    send(cluster, 0, ["set", "x", 5], key=b"b")
    cluster.run(build())
    carry_out(cluster, build(), Clear(store="s", keys=("a",)))
    send(cluster, 10, key=b"c")
    cluster.run(build())
    assert [key for key, value in results(cluster, keys=True) if value[0] == "x"] == [b"b"]
    assert own(cluster) == set()


def test_positions_that_go_back_take_the_time_along_and_leave_timers(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "x", 50])
    send(cluster, 20)
    cluster.run(build())
    carry_out(cluster, build(), Position(positions={"in": {0: 0}}))
    assert (OWN_KEY, CLOCK_OF_STORE) not in cluster.state(build(), "s")
    cluster.run(build())
    assert fired(cluster) == []
    send(cluster, 50)
    cluster.run(build())
    assert fired(cluster) == [["x", 50]]


def test_steps_behind_have_state_and_windows_of_their_own(cluster: InMemoryCluster) -> None:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead"
    )

    def count(value: Any, state: Any) -> Any:
        if value[0] == "bad":
            raise ValueError("bad timer")
        return [*value, state.increment("n")]

    emitted = app.dataframe(app.topic("in")).process(Told, store="s")
    emitted.apply(count, stateful=True, store="counts").to_topic(app.topic("out"))
    send(cluster, 0, ["set", "x", 5], ["set", "bad", 6], ["set", "y", 7])
    send(cluster, 9)
    cluster.run(app)
    assert results(cluster) == [["message", 0, 1], ["message", 9, 2], ["x", 5, 3], ["y", 7, 4]]
    assert "bad timer" in errors(cluster)[0]


def test_values_that_end_and_timers_share_a_store(cluster: InMemoryCluster) -> None:
    class Session:
        def on_message(self, value: Any, context: Any) -> None:
            context.state.set("n", 1)
            context.set_timer("look", at=context.timestamp + value)

        def on_timer(self, name: str, time: int, context: Any) -> None:
            context.emit([context.state.exists("n"), context.key.decode(), context.stream_time - T])

    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    kept = app.store("s", ttl=100)
    app.dataframe(app.topic("in")).process(Session, store=kept).to_topic(app.topic("out"))
    for value, at, key in ((50, 0, b"a"), (150, 0, b"b"), (9_000, 60, b"c"), (9_000, 200, b"c")):
        cluster.produce("in", b"%d" % value, key, timestamp_ms=T + at)
    cluster.run(app)
    assert results(cluster) == [[True, "a", 60], [False, "b", 200]]


class Bounded:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def on_message(self, value: Any, context: Any) -> None:
        for number in range(self.limit):
            context.emit(number)
        context.emit(len(context.headers or ()))


def test_a_processor_has_arguments_headers_and_may_have_no_timers(cluster: InMemoryCluster) -> None:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    app.dataframe(app.topic("in")).process(partial(Bounded, limit=2)).to_topic(app.topic("out"))
    cluster.produce("in", b"1", b"a", headers=[("h", b"1")])
    cluster.run(app)
    assert results(cluster) == [0, 1, 1]
    assert [store.name for store in app.topology().stores] == ["in-process"]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (["set", "x", -T - 1], "the time -1, expected 0 to"),
        (["set", "x", 1.5], r"the time 16\d+\.5"),
        (["set", 7, 5], "the name 7"),
        (["set", "x", 5, "wall"], "the clock 'wall', expected `stream` or `processing`"),
        (["set", "x", 10**15], "expected 0 to"),
        (["after", "x", -(10**10)], "or a timedelta"),
    ],
)
def test_what_is_no_timer_fails_its_message(cluster: InMemoryCluster, steps: Any, said: str) -> None:
    import re

    send(cluster, 0, steps)
    send(cluster, 100)
    cluster.run(build())
    assert re.search(said, errors(cluster)[0])
    assert results(cluster) == [["message", 100]]


def test_declarations_that_can_not_run() -> None:
    class Silent:
        pass

    frame = Application("in-memory", consumer_group="g", loglevel=None)
    stream = frame.dataframe(frame.topic("in"))
    for wrong in (Silent, 7, partial(Silent)):
        with pytest.raises(HoldfastError, match="expected a class with `on_message"):
            stream.process(wrong)  # type: ignore[arg-type]
    stream.process(Told)
    stream.process(Told)
    with pytest.raises(HoldfastError, match="used by 2 steps with timers"):
        frame.topology()


def test_a_processor_without_on_timer_sets_none(cluster: InMemoryCluster) -> None:
    class Deaf:
        def on_message(self, value: Any, context: Any) -> None:
            context.set_timer("x", at=5)

    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead"
    )
    app.dataframe(app.topic("in")).process(Deaf)
    cluster.produce("in", b"1", b"a")
    cluster.run(app)
    assert "the processor has no method `on_timer`" in errors(cluster)[0]


def test_without_changelogs_exactly_once_refuses_timers() -> None:
    with pytest.raises(HoldfastError, match="has timers, but use_changelog_topics is off"):
        build(use_changelog_topics=False).topology()


def test_the_code_of_a_processor_is_part_of_the_version() -> None:
    [store] = build().topology().stores
    assert (store.columns, store.timed, store.kind) == (("timers",), True, "key-value")

    class Other(Told):
        def on_message(self, value: Any, context: Any) -> None:
            context.emit(value)

    app = Application("in-memory", consumer_group="g", loglevel=None, dead_letter_topic="dead")
    app.dataframe(app.topic("in")).process(Other, store="s").to_topic(app.topic("out"))
    assert app.topology().code_version != build().topology().code_version


def test_a_clock_that_is_set_back_an_hour_fires_nothing_twice(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["after", "x", 5, "processing"], ["after", "y", 20, "processing"], ["set", "z", 100])
    cluster.run(build(), quiet_s=8)
    assert [name for name, _ in fired(cluster)] == ["x"]
    cluster.clock.skew_s -= 3_600
    send(cluster, 200)
    cluster.run(build(), quiet_s=30)
    assert [name for name, _ in fired(cluster)] == ["x", "z"]
    cluster.advance(3_600)
    cluster.run(build(), quiet_s=3)
    assert [name for name, _ in fired(cluster)] == ["x", "z", "y"]
    assert own(cluster) == set()


def status_of(cluster: InMemoryCluster, app: Application) -> ProcessorStatus:
    """The status of a worker after all its tasks run."""
    told: list[ProcessorStatus] = []

    def look(worker: Any, ticket: Any) -> Any:
        worker.maintenance.waits = True  # the worker must wait, so that the simulated time passes
        while not worker.assignment.tasks or not all(task.running for task in worker.assignment.tasks):
            yield
        told.append(ProcessorStatus.decode(describe_worker(worker, "g", "0", None)))
        worker.stop()
        return {}

    cluster.run(app)
    app._errand = look
    cluster.run(app)
    return told[0]


def test_a_status_tells_how_many_timers_wait_and_when_the_next_one_is_due(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = int(cluster.clock.time() * 1000) - T + 3_600_000
    send(cluster, 0, ["set", "x", 7_000], ["set", "y", 9_000], ["set", "gone", 1])
    send(cluster, 5, ["set", "p", far, "processing"], key=b"b")
    status = status_of(cluster, build())
    next_s = (T + far) / 1000
    assert status.tasks[0].timers == {"s": TimersStatus(3, False, (T + 7_000) / 1000, next_s)}
    assert status.timers == status.tasks[0].timers["s"]
    monkeypatch.setattr(serving, "TIMERS_COUNTED_MAX", 1)
    assert status_of(cluster, build()).timers == TimersStatus(2, True, (T + 7_000) / 1000, next_s)


def test_timers_of_several_tasks_are_told_together() -> None:
    assert together([]) is None
    found = together([TimersStatus(2, False, 5.0, None), TimersStatus(3, True, 4.0, 9.0), TimersStatus(0)])
    assert found == TimersStatus(5, True, 4.0, 9.0)


class Reminds:
    """Stores a value with a TTL for each message. Its timers emit the value that they read."""

    def on_message(self, value: Any, context: Any) -> None:
        if value:
            for at in value:
                context.set_timer(f"{at}", T + at)
            context.state.set("n", context.timestamp - T)

    def on_timer(self, name: str, time: int, context: Any) -> None:
        context.emit({"at": time - T, "seen": context.state.get("n"), "keys": context.state.keys()})


def counted(value: Any, state: Any) -> Any:
    return {**value, "counted": state.increment("count")}


@pytest.mark.parametrize("at_once", [1, 5_000])
def test_a_timer_that_fires_after_a_gap_sees_what_was_there_at_its_time(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """A timer that fires after a gap reads the values of its own time, even if a commit comes between the timers."""
    monkeypatch.setattr(task_timers, "FIRED_AT_ONCE", at_once)
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    timers = app.dataframe(app.topic("in")).process(Reminds, store=app.store("s", ttl=100))
    counts = timers.apply(counted, stateful=True, store=app.store("behind", ttl=30))
    counts.to_topic(app.topic("out"))
    cluster.produce("in", b"[50, 70, 99, 100, 120]", b"a", timestamp_ms=T)
    cluster.produce("in", b"[]", b"b", timestamp_ms=T + 1_000_000)
    cluster.produce("in", b"[60]", b"a", timestamp_ms=T + 60)
    cluster.run(app)
    seen = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    assert [(each["at"], each["seen"], each["counted"]) for each in seen] == [
        *((50, 0, 1), (70, 0, 2), (99, 0, 3), (100, None, 4), (120, None, 5)),
        (60, None, 1),  # the value expired before the message that set this timer
    ]
    assert [each["keys"] for each in seen] == [["n"]] * 3 + [[]] * 3
