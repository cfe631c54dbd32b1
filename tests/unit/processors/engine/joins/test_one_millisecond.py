"""Many messages of one key have the same millisecond.

An interval join stores them in small records, and sends all rows.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.changelog.format import (
    META_KEY,
    decode_value,
    encode_value,
    event_time_ms,
    key_prefix,
    split_key,
)
from holdfast.processors.engine.commands.table import COMMANDS
from holdfast.processors.engine.runtime.owner_commands.commands import Clear, Read
from holdfast.processors.engine.runtime.task import task_time
from holdfast.processors.engine.state.own_keys import CLOCK_OF_STORE
from holdfast.processors.engine.state.time.window_keys import OWN_KEY
from tests.window_lives import carry_out, put_back, stored

CHANGELOG = "g-j-changelog"
NOON, HOUR = 1_690_000_000_000, 3_600_000
#: The size of a value in bytes, and the changelog's `max.message.bytes`. A record has space for a few values.
SIZE, LIMIT = 100, 1_000


def both(left: Any, right: Any) -> list[Any]:
    return [left, right]


def built(how: Any, on_merge: Any = both, backend: Any = "rocksdb") -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        dead_letter_topic="dead",
        commit_every=7,
        state_backend=backend,
    )
    left, right = (app.dataframe(app.topic(name)) for name in ("l", "r"))
    left.join_interval(right, how, on_merge, 10, "j", backward_ms=5).to_topic(app.topic("out"))
    return app


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    for topic in ("l", "r", "out", "dead"):
        made.create_topic(topic)
    made.create_topic(CHANGELOG, config={"cleanup.policy": "compact", "max.message.bytes": str(LIMIT)})
    return made


def feed(cluster: InMemoryCluster, topic: str, *values: Any, at: int = NOON) -> None:
    for value in values:
        cluster.produce(topic, json.dumps(value).encode(), b"k", timestamp_ms=at)


def rows(cluster: InMemoryCluster) -> list[Any]:
    assert cluster.read("dead") == []
    return [json.loads(record.value or b"") for _, record in cluster.read("out")]


def kept(cluster: InMemoryCluster, app: Application) -> tuple[dict[str, Any], list[str]]:
    """The key's values in the join's store, and the entries of the store's indexes."""
    state = cluster.state(app, "j")
    entries = [name for key, name in state if key == OWN_KEY and name != CLOCK_OF_STORE]
    return {name: value for (key, name), value in state.items() if key == b"k"}, entries


def time_passes(cluster: InMemoryCluster, app: Application) -> None:
    """Move the time an hour forward. Then the store must contain only the message that moved the time."""
    feed(cluster, "l", "later", at=NOON + HOUR)
    cluster.run(app)
    values, entries = kept(cluster, app)
    assert (list(values), len(entries)) == ([f"l/{NOON + HOUR:015d}"], 1)


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_records_and_cost_do_not_grow_with_the_messages_of_a_time(
    cluster: InMemoryCluster, how: str, backend: str
) -> None:
    """When more messages have the same time, neither the records nor the bytes written for each message become more.

    Each run restores the store of the run before from the changelog.
    """
    app, costs, values = built(how, backend=backend), list[int](), list[str]()
    for part in range(6):
        made = [f"{part} {number} ".ljust(SIZE, "x") for number in range(20)]
        before = len(cluster.read(CHANGELOG))
        feed(cluster, "r", *made)
        cluster.run(app)
        values += made
        written = [record for _, record in cluster.read(CHANGELOG)][before:]
        sizes = [len(record.value or b"") for record in written if record.key != META_KEY]
        assert max(sizes) <= LIMIT // 2
        costs.append(sum(sizes))
    assert 0 < max(costs) < 1.5 * min(costs), costs
    feed(cluster, "l", 1, 2, at=NOON + 3)
    cluster.run(app)
    assert rows(cluster) == [[left, value] for left in (1, 2) for value in values]
    place = f"r/{NOON:015d}"
    assert list(kept(cluster, app)[0])[:3] == [place, f"{place}/000000001", f"{place}/000000002"]
    time_passes(cluster, app)
    assert len(rows(cluster)) == 2 * len(values)


def test_each_message_of_a_time_is_sent_once_without_a_match_in_the_order_of_arrival(cluster: InMemoryCluster) -> None:
    app = built("outer")
    lefts, rights = ([f"{side}{number} ".ljust(SIZE, "x") for number in range(25)] for side in "lr")
    for first in (0, 10):
        feed(cluster, "l", *lefts[first : first + 10])
        feed(cluster, "r", *rights[first : first + 10], at=NOON + 1)
        cluster.run(app)
    feed(cluster, "l", *lefts[20:])
    feed(cluster, "r", *rights[20:], at=NOON + 1)
    time_passes(cluster, app)
    assert rows(cluster) == [*([left, None] for left in lefts), *([None, right] for right in rights)]


def test_a_row_without_a_match_that_fails_takes_no_other_with_it(cluster: InMemoryCluster) -> None:
    def merged(left: Any, right: Any) -> list[Any]:
        if left == "bad":
            raise ValueError(left)
        return [left, right]

    app = built("left", merged)
    feed(cluster, "l", 1, "bad", 2)
    time_passes(cluster, app)
    assert [json.loads(record.value or b"") for _, record in cluster.read("out")] == [[1, None], [2, None]]
    assert len(cluster.read("dead")) == 1


@pytest.mark.parametrize("how", ["inner", "outer"])
def test_a_merge_function_that_changes_its_arguments_changes_no_other_match(cluster: InMemoryCluster, how: str) -> None:
    def merged(left: Any, right: Any) -> list[Any]:
        for side in (left, right):
            side["seen"] += 1
        return [{**left}, {**right}]

    app = built(how, merged)
    feed(cluster, "r", *({"r": number, "seen": 0} for number in range(3)))
    for number in range(2):
        feed(cluster, "l", {"l": number, "seen": 0})
        cluster.run(app)
    assert rows(cluster) == [
        [{"l": left, "seen": 1}, {"r": right, "seen": 1}] for left in range(2) for right in range(3)
    ]
    assert all(value["seen"] == 0 for made in kept(cluster, app)[0].values() for value, _ in made)


def written_by_former(cluster: InMemoryCluster) -> None:
    """Rewrite the changelog as older versions of Holdfast wrote it: one record has all values of one time.

    The index by time has one entry for this record.
    """
    content: dict[bytes, bytes] = {}
    for _, record in cluster.read(CHANGELOG):
        if record.key is not None and record.value is not None and record.key != META_KEY:
            content[record.key] = record.value
    together: dict[bytes, list[Any]] = {}
    for key, raw in sorted(content.items()):
        if split_key(key)[1][:2] == "l/":
            together.setdefault(key[: -len("/000000001")] if key[-10:-9] == b"/" else key, []).extend(decode_value(raw))
        if key[-10:-9] == b"/":
            cluster.produce(CHANGELOG, None, key)
    clock = key_prefix(OWN_KEY) + CLOCK_OF_STORE.encode()
    record = decode_value(content[clock])
    assert record["format"] == 2  # older versions of Holdfast refuse format 2
    cluster.produce(CHANGELOG, encode_value({**record, "format": 1}, event_time_ms(content[clock])), clock)
    for key, values in together.items():
        cluster.produce(CHANGELOG, encode_value(values, event_time_ms(content[key])), key)
    meta = [record for _, record in cluster.read(CHANGELOG) if record.key == META_KEY][-1]
    cluster.produce(CHANGELOG, meta.value, META_KEY)


@pytest.mark.parametrize("how", ["inner", "outer"])
@pytest.mark.parametrize("is_matched", [True, False])
def test_a_store_of_former_versions_is_read_joined_and_expires(
    cluster: InMemoryCluster, how: str, is_matched: bool
) -> None:
    app, place = built(how), f"l/{NOON:015d}"
    lefts = [f"{number} ".ljust(SIZE, "x") for number in range(6)]
    feed(cluster, "l", *lefts[:4])
    cluster.run(app)
    written_by_former(cluster)
    former, entries = kept(cluster, app)
    assert (former, len(entries)) == ({place: [[left, False] for left in lefts[:4]]}, 1)
    feed(cluster, "l", *lefts[4:])
    cluster.run(app)
    # the store changes to format 2 at once, even if stream time has not moved
    assert cluster.state(app, "j")[OWN_KEY, CLOCK_OF_STORE]["format"] == 2
    new = {f"{place}/000000001": [[left, False] for left in lefts[4:]]}
    if how == "outer":
        new = {f"{place}/00000000{number}": [[lefts[3 + number], False]] for number in (1, 2)}
    assert kept(cluster, app)[0] == {**former, **new}
    if is_matched:
        feed(cluster, "r", "right", "other", at=NOON)
        cluster.run(app)
        assert rows(cluster) == [[left, right] for right in ("right", "other") for left in lefts]
        time_passes(cluster, app)
        assert len(rows(cluster)) == 12
    else:
        time_passes(cluster, app)
        assert rows(cluster) == ([[left, None] for left in lefts] if how == "outer" else [])


def test_a_query_shows_no_message_of_a_time_that_is_over(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_time.TaskTime, "_remove", lambda self: None)
    app = built("inner")
    feed(cluster, "l", *(str(number) * 4 * SIZE for number in range(3)))
    feed(cluster, "l", "later", at=NOON + HOUR)
    cluster.run(app)
    assert len(kept(cluster, app)[0]) == 4  # all four values are expired, but not removed from the store yet
    shown: list[str] = []

    def errand(worker: Any, ticket: Any) -> Any:
        worker.maintenance.waits = True  # the worker must wait for a while, so that the simulated time passes
        while not worker.assignment.tasks or not all(task.running for task in worker.assignment.tasks):
            yield
        worker.maintenance.waits = False
        answer = COMMANDS.read(Read(store="j", keys=None, all=True), worker)
        shown.extend(row["state"] for row in answer["rows"] if row["key"] == "k")
        worker.stop()
        return {}

    app._errand = errand
    cluster.run(app)
    assert shown == [f"l/{NOON + HOUR:015d}"]


@pytest.mark.parametrize("how", ["inner", "outer"])
def test_what_was_cleared_is_put_back_and_goes_on(cluster: InMemoryCluster, how: str) -> None:
    app = built(how)
    lefts = [f"{number} ".ljust(SIZE, "x") for number in range(9)]
    feed(cluster, "l", *lefts)
    cluster.run(app)
    before = stored(cluster, app, "j")
    cleared = carry_out(cluster, app, Clear(store="j", export=True, keys=("k",)))
    assert kept(cluster, app) == ({}, [])
    put_back(cluster, built(how), "j", cleared["lines"])
    assert stored(cluster, app, "j") == before
    feed(cluster, "l", "new")
    feed(cluster, "r", "right")
    cluster.run(built(how))
    assert rows(cluster) == [[left, "right"] for left in (*lefts, "new")]
    time_passes(cluster, built(how))
    assert len(rows(cluster)) == 10
