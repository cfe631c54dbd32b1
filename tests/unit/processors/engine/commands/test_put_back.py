"""A cleared store with windows or timers is restored from its export, record for record, and then works as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.changelog.format import split_key
from holdfast.processors.engine.commands import content, sweep
from holdfast.processors.engine.runtime.owner_commands.commands import Clear, CommandFailed
from holdfast.processors.engine.state.time.time_records import owner_of
from tests.mechanics.tiers import variants
from tests.window_apps import T, build, send
from tests.window_lives import carry_out, put_back, stored


class Reminder:
    """Sets a timer for each message, on the stream clock or the worker's clock, and a value with a TTL."""

    def on_message(self, value: Any, context: Any) -> None:
        clock = "stream" if value % 2 else "processing"
        context.set_timer(f"t{value}", at=timedelta(seconds=20), clock=clock)
        context.state.set(f"v{value}", value)

    def on_timer(self, name: str, time: int, context: Any) -> None:
        context.emit([name, len(list(context.state.items()))])


def timed() -> Application:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    kept = app.store("w", ttl=timedelta(seconds=25))
    app.dataframe(app.topic("in")).process(Reminder, store=kept).to_topic(app.topic("out"))
    return app


def windowed(place: Callable[[Any], Any]) -> Callable[[], Application]:
    return lambda: build(place)


KINDS: dict[str, Callable[[], Application]] = {
    "tumbling by partition": windowed(
        lambda frame: frame.tumbling_window(10_000, 1_000, name="w").count().final(closing_strategy="partition")
    ),
    "sessions by partition": windowed(
        lambda frame: frame.session_window(4_000, name="w").count().final(closing_strategy="partition")
    ),
    "timers and TTL": timed,
    "hopping by key": windowed(lambda frame: frame.hopping_window(10_000, 5_000, name="w").sum().final()),
    "sessions by key": windowed(lambda frame: frame.session_window(4_000, name="w").sum().final()),
    "current, held back": windowed(
        lambda frame: frame.tumbling_window(10_000, name="w").count().current().suppress(every=3_000)
    ),
    "sliding": windowed(lambda frame: frame.sliding_window(10_000, name="w").sum().final()),
    "tumbling by count": windowed(lambda frame: frame.tumbling_count_window(4, name="w").sum().final()),
    "sliding by count": windowed(lambda frame: frame.sliding_count_window(4, name="w").sum().final()),
}
#: Message keys that are shorter than the key of the store's internal records, as long as this key, and longer.
KEYS = (b"a", b"nine-byte", b"longer-than-these")
#: Event times in seconds of the messages before a command and after it.
BEFORE, AFTER = (0, 3, 12, 13, 16, 17, 21), (22, 29, 33, 34, 50, 60)


def feed(cluster: InMemoryCluster, seconds: tuple[int, ...], keys: tuple[bytes, ...] = KEYS) -> None:
    for second in seconds:
        for number, key in enumerate(keys):
            send(cluster, second * 1_000 + number, second, key)


def results(cluster: InMemoryCluster) -> list[tuple[bytes | None, int, Any]]:
    return [(record.key, record.timestamp_ms, json.loads(record.value or b"")) for _, record in cluster.read("out")]


def world() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    made.create_topic("out")
    return made


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches, so that a command takes many transactions."""
    for module, name in ((sweep, "ENTRIES_MAX"), (sweep, "LOOKS_MAX"), (content, "LOOKS_MAX")):
        monkeypatch.setattr(module, name, 17)


@pytest.mark.parametrize("kind", variants(KINDS, tested=3))
@pytest.mark.parametrize("chosen", [{"all": True}, {"keys": ("a", "longer-than-these")}], ids=["all", "keys"])
def test_a_store_that_was_cleared_is_put_back_and_goes_on(kind: str, chosen: dict[str, Any]) -> None:
    made, twin, app = world(), world(), KINDS[kind]
    for each in (made, twin):
        feed(each, BEFORE)
        each.run(app())
    before = stored(made, app(), "w")
    assert before == stored(twin, app(), "w")
    cleared = carry_out(made, app(), Clear(store="w", export=True, **chosen))
    left = stored(made, app(), "w")
    names = [key.encode() for key in chosen.get("keys", ())] or KEYS
    records = [split_key(key) for key in left]
    assert not [each for each in records if each[0] in names or owner_of(each[1]) in names]
    assert left == {} if "all" in chosen else 0 < len(left) < len(before)
    put_back(made, app(), "w", cleared["lines"])
    assert stored(made, app(), "w") == before
    # Set the clock of the second cluster (the twin) to the same time, because timers use the worker's clock.
    twin.advance(made.clock.time() - twin.clock.time())
    for each in (made, twin):
        feed(each, AFTER)
        each.run(app(), quiet_s=60)
    assert results(made) == results(twin)
    assert stored(made, app(), "w") == stored(twin, app(), "w")


@pytest.mark.parametrize("kind", variants(["sessions by key", "hopping by key"]))
def test_a_window_that_closed_since_it_was_put_back_is_not_put_back_as_an_open_one(kind: str) -> None:
    made, twin, app = world(), world(), KINDS[kind]
    for each in (made, twin):
        feed(each, BEFORE)
        each.run(app())
    cleared = carry_out(made, app(), Clear(store="w", export=True, keys=("a",)))
    put_back(made, app(), "w", cleared["lines"])
    for each in (made, twin):
        feed(each, (60,))
        each.run(app())
    put_back(made, app(), "w", cleared["lines"])
    for each in (made, twin):
        feed(each, (100,))
        each.run(app())
    assert results(made) == results(twin)


@pytest.mark.parametrize("kind", variants(["sessions by partition", "tumbling by partition"]))
def test_a_window_that_is_put_back_behind_its_end_is_sent_once(kind: str) -> None:
    made, app = world(), KINDS[kind]
    feed(made, BEFORE)
    made.run(app())
    seen = results(made)
    before = stored(made, app(), "w")
    cleared = carry_out(made, app(), Clear(store="w", export=True, keys=("a",)))
    feed(made, (40, 60), KEYS[1:])  # meanwhile stream time passes the end of the windows that the clear removed
    made.run(app())
    assert [key for key, *_ in results(made)[len(seen) :] if key == b"a"] == []
    for _ in range(2):  # put the file back twice, as if the first command had died before it was recorded
        put_back(made, app(), "w", cleared["lines"])
        made.run(app(), quiet_s=20)
    twin = world()
    feed(twin, BEFORE)
    feed(twin, (40, 60), KEYS[1:])
    twin.run(app())
    assert sorted(results(made), key=str) == sorted(results(twin), key=str)
    assert len([key for key in stored(made, app(), "w") if b"a" in key]) >= len([key for key in before if b"a" in key])


def test_windows_that_began_since_stay_beside_those_that_are_put_back() -> None:
    made, app = world(), KINDS["hopping by key"]
    feed(made, BEFORE)
    made.run(app())
    cleared = carry_out(made, app(), Clear(store="w", export=True, all=True))
    feed(made, (23,))
    made.run(app())
    put_back(made, app(), "w", cleared["lines"])
    feed(made, (90,))
    made.run(app())
    sent = [(each["start"] - T, each["value"]) for key, _, each in results(made) if key == b"a"]
    # The export has one message of the window at 20 s. It replaces the window that was built since; no window is sent
    # twice.
    assert sorted(sent) == [(-5_000, 3), (0, 3), (5_000, 25), (10_000, 58), (15_000, 54), (20_000, 21)]


def test_a_file_of_another_strategy_changes_nothing() -> None:
    made = world()
    feed(made, BEFORE)
    made.run(KINDS["tumbling by partition"]())
    cleared = carry_out(made, KINDS["tumbling by partition"](), Clear(store="w", export=True, all=True))
    with pytest.raises(CommandFailed, match="closed by partition; expected version 2, closed by key"):
        put_back(made, KINDS["hopping by key"](), "w", cleared["lines"])
    assert stored(made, KINDS["hopping by key"](), "w") == {}
