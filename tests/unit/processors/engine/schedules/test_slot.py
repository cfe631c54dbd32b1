"""A schedule's function may read ranges of stores, and send outputs. Other uses are refused.

The ranges equal those that plain Python computes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from holdfast import Application, Count, InMemoryCluster, Sum
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.formats.serialization import ValueUnwritable
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.engine.schedules.reading import ScheduleReadRefused
from holdfast.processors.engine.schedules.slot import ScheduleSendRefused
from tests.mechanics.tiers import variants

KEYS = [
    b"",
    b"a",
    b"b",
    b"c",
    b"aa",
    b"ab",
    b"ba",
    b"bb",
    b"cc",
    b"bab",
    b"bbb",
    b"\xff",
    b"\x00holdfast",
    b"b\xff\xff",
]
BOUNDS: list[bytes | None] = [None, *KEYS[1:9], b"bz", b"\xff\xff", b"zzzz"]


class Calls:
    """An application with a schedule. Its function calls what the test passes to `ask`, once."""

    def __init__(self, partitions: int = 1, commit_every: int = 0, **options: Any) -> None:
        self.cluster, self._commit_every, self._options = InMemoryCluster(), commit_every, options
        self.cluster.create_topic("in", partitions=partitions)
        self.cluster.create_topic("out")
        self.call: Callable[[Any], Any] = lambda slot: None

    def build(self) -> Application:
        app = Application(
            "in-memory",
            consumer_group="g",
            auto_offset_reset="earliest",
            loglevel=None,
            commit_every=self._commit_every,
            dead_letter_topic=self._options.get("dead_letter_topic"),
        )

        def keep(value: Any, state: Any) -> Any:
            for name, number in value.items():
                state.delete(name) if number is None else state.set(name, number)
            return value

        frame = app.dataframe(app.topic("in"))
        frame = frame.apply(keep, stateful=True, store=app.store("kept", ttl=self._options.get("ttl")))
        frame.aggregate({"n": Count(), "x": Sum(lambda value: value.get("x") or 0)}, store="sums")
        frame.tumbling_window(1_000, name="hours").count().current()
        app.dataframe(app.topic("others")).to_table("rows")
        outputs = [app.topic("out"), app.topic("texts", key_serializer="str", value_serializer="str")]
        to = outputs[: self._options.get("outputs", 1)]

        @app.every(timedelta(seconds=10), per="task", to=to, stream=frame)
        def ask(slot: Any) -> None:
            self.call(slot)

        self.topics = outputs
        return app

    def give(self, key: bytes, **values: Any) -> None:
        self.cluster.produce("in", json.dumps(values).encode(), key)

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """Return the result of ``call`` in the next slot (scheduled time)."""
        found: list[Any] = []
        self.call = lambda slot: found.append(call(slot))
        self.cluster.run(self.build(), quiet_s=11)
        return found[-1]


@pytest.mark.parametrize("seed", variants(range(40), tested=6))
def test_ranges_are_those_of_plain_python(seed: int) -> None:
    random = Random(seed)
    calls = Calls(commit_every=random.choice([0, 3]))
    model: dict[tuple[bytes, str], Any] = {}
    for _ in range(random.randrange(5, 40)):
        key, name = random.choice(KEYS), random.choice("xyz")
        value = random.choice([None, 1, 2, 3])
        calls.give(key, **{name: value})
        model.pop((key, name), None)
        if value is not None:
            model[key, name] = value
    wanted = [(random.choice([None, b"b", b"ba", "b", b"\xff"]), *random.sample(BOUNDS, 2)) for _ in range(30)]
    limits = [random.choice([None, 0, 1, 3, 100]) for _ in wanted]

    def call(slot: Any) -> list[Any]:
        asked = zip(wanted, limits, strict=True)
        return [list(slot.items("kept", prefix=p, start=s, end=e, limit=most)) for (p, s, e), most in asked]

    expected = []
    for (prefix, start, end), limit in zip(wanted, limits, strict=True):
        head = prefix.encode() if isinstance(prefix, str) else prefix or b""
        inside = [
            (key, name, value)
            for (key, name), value in sorted(model.items(), key=lambda each: (len(each[0][0]), *each[0]))
            if key.startswith(head) and key >= (start or b"") and (end is None or key < end) and key != b"\x00holdfast"
        ]
        expected.append(inside[:limit])
    assert [[tuple(each) for each in one] for one in calls.ask(call)] == expected
    assert calls.ask(call) == calls.ask(call)  # the second call reads from the database after a restart


def test_an_aggregation_shows_its_results_and_a_range_may_be_left_early() -> None:
    calls = Calls()
    for number in range(50):
        calls.give(b"k%d" % (number % 5), x=number)

    def call(slot: Any) -> Any:
        first = next(iter(slot.items("sums")))  # an iterator that is left open is closed when the call ends
        return first, {entry.key: entry.value for entry in slot.items("sums")}

    first, found = calls.ask(call)
    assert found == {b"k%d" % at: {"n": 10, "x": sum(range(at, 50, 5))} for at in range(5)}
    assert tuple(first) == (b"k0", "aggregates", found[b"k0"]) or first.value == found[b"k0"]


def test_values_that_have_ended_are_not_read() -> None:
    calls = Calls(ttl=60_000)
    now = int(calls.cluster.clock.time() * 1000)
    for key, at in ((b"old", -90_000), (b"new", 0)):
        calls.cluster.produce("in", b'{"x":1}', key, timestamp_ms=now + at)
    assert [entry.key for entry in calls.ask(lambda slot: list(slot.items("kept")))] == [b"new"]


def test_a_slot_sees_what_it_has_written_and_restores_its_state_while_it_reads() -> None:
    calls = Calls()
    for key in (b"a", b"b", b"c"):
        calls.give(key, x=1)

    def call(slot: Any) -> Any:
        for entry in slot.items("kept"):
            slot.state.set(entry.key.decode(), slot.state.increment("n"))
        return slot.state.items()

    assert calls.ask(call) == [("a", 1), ("b", 2), ("c", 3), ("n", 3)]


def test_outputs_have_key_time_and_headers() -> None:
    calls = Calls(outputs=2)

    def call(slot: Any) -> int:
        slot.send({"n": 1}, key=b"k", topic=calls.topics[0], headers={"h": "v"}, timestamp=slot.time - 5)
        slot.send("text", key="k", topic=calls.topics[1])
        slot.send(None, topic=calls.topics[0])
        return int(slot.time)

    at = calls.ask(call)
    (_, first), (_, second) = calls.cluster.read("out")
    assert (first.key, first.value, first.timestamp_ms, first.headers) == (b"k", b'{"n":1}', at - 5, [("h", b"v")])
    assert (second.key, second.value, second.timestamp_ms) == (None, None, at)
    [(_, text)] = calls.cluster.read("texts")
    assert (text.key, text.value) == (b"k", b"text")


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda slot: slot.items("nothing"), ScheduleReadRefused, "'nothing'.*it has kept, sums"),
        (lambda slot: slot.items("rows"), ScheduleReadRefused, "does not have"),
        (lambda slot: slot.items("hours"), ScheduleReadRefused, "window"),
        (lambda slot: slot.items("kept", prefix=5), ScheduleReadRefused, "`prefix`.*5 of type int"),
        (lambda slot: slot.items("kept", limit=-1), ScheduleReadRefused, "`limit`"),
        (lambda slot: slot.send(1, topic="out"), ScheduleSendRefused, "'out'.*names out"),
        (lambda slot: slot.send({1, 2}), ValueUnwritable, "type set"),
        (lambda slot: slot.send(1, key=1.5), ValueUnwritable, "key of type float"),
        (lambda slot: slot.send(1, headers=5), HoldfastError, "headers"),
    ],
)
def test_what_a_slot_can_not_do_is_refused_by_name(
    call: Callable[[Any], Any], error: type[HoldfastError], says: str
) -> None:
    calls = Calls()
    with pytest.raises(ProcessingFailed, match=says) as failed:
        calls.ask(call)
    assert isinstance(failed.value.__cause__, error)


def test_several_topics_have_to_be_named_and_none_is_none() -> None:
    with pytest.raises(ProcessingFailed, match="its `to=` names out, texts"):
        Calls(outputs=2).ask(lambda slot: slot.send(1))
    with pytest.raises(ProcessingFailed, match="its `to=` names no topic"):
        Calls(outputs=0).ask(lambda slot: slot.send(1))


def test_a_slot_that_is_kept_is_over_after_its_call() -> None:
    slot = Calls().ask(lambda slot: slot)
    for use in (lambda: slot.send(1), lambda: slot.items("kept"), slot.now):
        with pytest.raises(ScheduleSendRefused, match="after its call had ended"):
            use()
