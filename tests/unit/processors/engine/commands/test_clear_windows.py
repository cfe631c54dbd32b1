"""A clear by window deletes exactly the records of these windows.

When these records are put back, the store is as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.changelog.format import decode_value, split_key
from holdfast.processors.engine.commands import content, sweep
from holdfast.processors.engine.runtime.owner_commands.commands import Clear, CommandWrong, Count
from holdfast.processors.engine.state.time.window_keys import HELD, KEY_TIME, OWN_KEY, due_entry, window_of
from tests.mechanics.tiers import variants
from tests.unit.processors.engine.commands.test_put_back import KINDS, feed, results, world
from tests.window_apps import T, build, send
from tests.window_lives import carry_out, put_back, stored

SECOND = 1_000
MESSAGES = (0, 3, 12, 13, 16, 17, 21, 33)
RANGES = [(10, 20), (12, 13), (0, 5), (0, 100), (50, 60)]
WITH_WINDOWS = ("tumbling by partition", "sessions by partition", "sessions by key", "hopping by key")


def state_of(cluster: InMemoryCluster, app: Application) -> dict[tuple[bytes, str], Any]:
    return {split_key(key): decode_value(value) for key, value in stored(cluster, app, "w").items()}


def spans(state: dict[tuple[bytes, str], Any]) -> set[tuple[bytes, int, int]]:
    """The windows in a store, open or closed, with start and end in seconds."""
    return {(key, start // SECOND, -(-end // SECOND)) for key, start, end in _spans(state)}


def _spans(state: dict[tuple[bytes, str], Any]) -> Iterator[tuple[bytes, int, int]]:
    for (key, name), value in state.items():
        if name.startswith("s/"):
            yield key, value["session"]["start"] - T, value["session"]["end"] - T
        elif found := window_of(name):
            yield key, found[0] - T, found[1] - T


def check_whole(state: dict[tuple[bytes, str], Any]) -> None:
    """Check that the window of each index entry is stored, and so is each window that a key lists as open."""
    for key, name in state:
        if key == OWN_KEY and name.startswith("due/"):
            entry = due_entry(name)
            names = (f"w/{entry.start:015d}/{entry.end:015d}", f"s/{entry.start:015d}")
            assert any((entry.message_key, each) in state for each in names), name
        if name == KEY_TIME:
            for first, second in state[key, name]["open"]:
                names = (f"w/{first:015d}/{second:015d}", f"s/{second:015d}")
                assert any((key, each) in state for each in names), (key, first, second)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((sweep, "ENTRIES_MAX"), (sweep, "LOOKS_MAX"), (content, "LOOKS_MAX")):
        monkeypatch.setattr(module, name, 5)


@pytest.mark.parametrize("kind", variants(WITH_WINDOWS, tested=3))
@pytest.mark.parametrize(("start", "end"), variants(RANGES, tested=1))
@pytest.mark.parametrize("chosen", [{"all": True}, {"keys": ("a",)}], ids=["all", "key"])
def test_windows_that_contain_a_time_are_deleted_with_all_that_belongs_to_them(
    kind: str, start: int, end: int, chosen: dict[str, Any]
) -> None:
    made, app = world(), KINDS[kind]
    feed(made, MESSAGES)
    for _ in range(2):  # the second run reads index entries of sessions that are already closed
        made.run(app())
    before, raw = state_of(made, app()), stored(made, app(), "w")
    check_whole(before)
    window = (T + start * SECOND, T + end * SECOND)
    gone = {
        (key, first, last)
        for key, first, last in _spans(before)
        if first + T < window[1] and last + T > window[0] and ("all" in chosen or key == b"a")
    }
    counted = carry_out(made, app(), Count(store="w", window=window, **chosen))
    cleared = carry_out(made, app(), Clear(store="w", window=window, export=True, **chosen))
    assert counted["keys"] == cleared["keys"] == len({key for key, *_ in gone})
    after = state_of(made, app())
    assert set(_spans(after)) == set(_spans(before)) - gone
    check_whole(after)
    untouched = {place: value for place, value in before.items() if place[1] not in (KEY_TIME, HELD)}
    assert {place: after.get(place, value) for place, value in untouched.items()} == untouched
    put_back(made, app(), "w", cleared["lines"])
    assert stored(made, app(), "w") == raw


@pytest.mark.parametrize("window", [None, (T, T + 10_000)], ids=["store", "window"])
def test_a_clear_of_a_partition_leaves_the_windows_and_the_time_of_others(window: tuple[int, int] | None) -> None:
    made = InMemoryCluster()
    for topic in ("in", "out"):
        made.create_topic(topic, partitions=2)

    def app() -> Application:
        return build(lambda frame: frame.tumbling_window(10_000, name="w").count().final("partition"))

    def say(*times: int) -> None:
        for at in times:
            for partition in (0, 1):
                made.produce("in", b"1", b"k%d" % partition, partition=partition, timestamp_ms=T + at)

    say(0, 12_000)
    made.run(app())
    before = state_of(made, app())
    carry_out(made, app(), Clear(store="w", partitions=(1,), all=True, window=window))
    after = state_of(made, app())
    assert {key: after[key] for key in after if key[0] == b"k0"} == {
        key: before[key] for key in before if key[0] == b"k0"
    }
    assert spans({key: value for key, value in after.items() if key[0] == b"k1"}) == (
        set() if window is None else {(b"k1", 10, 20)}
    )
    # The message at 1 s is late in partition 0. In partition 1 it is late only if the clear kept the stream time.
    say(1, 20_000)
    made.run(app())
    sent = [(key, (start - T) // SECOND, each["value"]) for key, start, each in results(made)]
    again = {(b"k1", 0, 1)} if window is None else {(b"k1", 10, 1)}
    assert sorted(sent) == sorted([(b"k0", 0, 1), (b"k1", 0, 1), (b"k0", 10, 1), *again])


def test_an_open_window_that_was_cleared_begins_again_and_is_sent_once() -> None:
    for kind in ("tumbling by partition", "hopping by key", "sessions by key"):
        made, app = world(), KINDS[kind]
        feed(made, (0, 3), (b"a",))
        made.run(app())
        carry_out(made, app(), Clear(store="w", window=(T, T + 3_001), all=True))
        assert list(_spans(state_of(made, app()))) == []
        feed(made, (3, 30), (b"a",))
        made.run(app())
        sent = [each["value"] for *_, each in results(made)]
        assert sent == ([3, 3] if kind.startswith("hopping") else [1] if kind.startswith("tumbling") else [3])


def test_a_result_that_is_held_back_goes_with_its_window() -> None:
    made, app = world(), KINDS["current, held back"]
    feed(made, (0, 1, 2), (b"a",))
    made.run(app())
    carry_out(made, app(), Clear(store="w", window=(T, T + 1), all=True))
    feed(made, (20,), (b"b",))
    made.run(app())
    assert [(key, each["value"]) for key, _, each in results(made)] == [(b"a", 1), (b"b", 1)]


@pytest.mark.parametrize(
    ("place", "seen"),
    [
        (lambda frame: frame.sliding_window(10, name="w").count().final(), "messages of sliding windows"),
        (lambda frame: frame.tumbling_count_window(3, name="w").count().final(), "no windows of event time"),
        (lambda frame: frame.apply(lambda value, state: value, stateful=True, store="w"), "no windows of event time"),
    ],
    ids=["sliding", "count", "functions"],
)
def test_a_store_without_windows_refuses(place: Callable[[Any], Any], seen: str) -> None:
    made = world()
    send(made, 0)
    made.run(build(place))
    before = stored(made, build(place), "w")
    with pytest.raises(CommandWrong, match=f"store 'w' are selected by their times, but it stores {seen}"):
        carry_out(made, build(place), Clear(store="w", window=(T, T + 1), all=True))
    assert stored(made, build(place), "w") == before


def test_a_window_without_times_is_refused() -> None:
    made, app = world(), KINDS["hopping by key"]
    with pytest.raises(CommandWrong, match="expected a later second time"):
        carry_out(made, app(), Clear(store="w", window=(T, T), all=True))


def test_the_file_of_a_clear_by_window_has_no_other_windows() -> None:
    made, app = world(), KINDS["tumbling by partition"]
    feed(made, MESSAGES)
    made.run(app())
    cleared = carry_out(made, app(), Clear(store="w", window=(T, T + 1), export=True, keys=("a",)))
    names = sorted(json.loads(line)["state"].partition("/")[0] for line in cleared["lines"])
    assert names == ["clock", "due", "w"]
