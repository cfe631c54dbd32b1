"""Joins on the engine equal a plain Python model, with messages in any order and despite kills.

The tests also find bugs that are planted in the engine's code on purpose.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, Topic
from holdfast.processors.engine.joins import as_of, versioned_tables
from holdfast.processors.engine.joins import interval as joins
from holdfast.processors.engine.joins import rows_of_both as table_joins
from holdfast.processors.engine.joins.rows_of_both import JoinedRow
from holdfast.processors.engine.joins.table_rows import TablePut, TableRead
from holdfast.processors.engine.runtime import loop
from holdfast.processors.engine.runtime.reading import reading_order
from holdfast.processors.engine.runtime.task import task_time
from holdfast.processors.engine.state.time import dated_values
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.oracles.join_rules import AsOfJoin, HistoryJoin, IntervalJoin, Message, Row, TablesJoin, in_order, table_rows
from tests.simulation.disk import SimulatedDisk
from tests.window_lives import live, world

SEEDS = variants(range(1_700), tested=4)
VALUES: list[Any] = [0, "", False, {}, [], 1, "x", {"a": None}, None]
KEYS = [b"a", b"b", b"", b"a/b"]


def draw(random: Random, *, left: bool) -> list[Message]:
    """The messages of one side. Most are in order, some are late, and some have equal times."""
    at, found = 0, []
    for _ in range(random.randint(0, 60)):
        at += random.choice([0, 1, 3, 10, 30, 200 if random.random() < 0.1 else 5])
        late = random.choice([0, 0, 0, 1, 10, 45, 120])
        found.append(Message(left, random.choice(KEYS), max(1, at - late), random.choice(VALUES)))
    return found


def both(left: Any, right: Any) -> list[Any]:
    return [left, right]


def built(state_dir: Path, join: Callable[[Any, Any], Any], *, left_first: bool) -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        state_dir=state_dir,
        commit_every=7,
    )
    frames = {name: app.dataframe(app.topic(name)) for name in (("l", "r") if left_first else ("r", "l"))}
    join(frames["l"], frames["r"]).to_topic(app.topic("out"))
    return app


def rows_of(cluster: InMemoryCluster) -> list[Row]:
    found = [(record, json.loads(record.value or b"")) for _, record in cluster.read("out")]
    return [(record.timestamp_ms, record.key or b"", *made) for record, made in found]


def shown(rows: list[Row]) -> Counter[str]:
    """Rows as texts, because False and 0 are equal in Python but not as output."""
    return Counter(map(repr, rows))


def feeds_others(app: Application, topic: str) -> bool:
    def stores(name: str, *kinds: type) -> set[str | None]:
        return {node.store for node in app._frames[name].source.walk() if isinstance(node.function, kinds)}

    read = [stores(name, as_of.AsOfLeft, TableRead) for name in app._frames if name != topic]
    return not stores(topic, as_of.AsOfRight, TablePut, JoinedRow).isdisjoint(set().union(*read))


def live_through(
    cluster: InMemoryCluster, app: Application, sides: tuple[list[Message], list[Message]], random: Random
) -> list[Message]:
    """Feed both sides in parts, and process each part despite kills. Returns the messages in the order of reading."""
    disk, order, parts = SimulatedDisk(), list[Message](), random.randint(1, 3)
    for part in range(parts):
        left, right = (side[len(side) * part // parts : len(side) * (part + 1) // parts] for side in sides)
        for message in [*left, *right] if random.random() < 0.5 else [*right, *left]:
            value = None if message.value is None else json.dumps(message.value).encode()
            cluster.produce("l" if message.left else "r", value, message.key, timestamp_ms=message.time_ms)
        # If times are equal, an as-of join or a table reads its right side first. An interval join reads the topology's
        # first input first.
        feeds = {name: feeds_others(app, name) for name in ("l", "r")}
        first = app.topology().inputs[0].name == "l"
        order += in_order(left, right, left_first=first if feeds["l"] == feeds["r"] else feeds["l"])
        for _ in range(2):
            live(cluster, app, disk if random.random() < 0.5 else SimulatedDisk(), random)
        live(cluster, app, SimulatedDisk(), None)
    return order


def sides(random: Random) -> tuple[list[Message], list[Message]]:
    return draw(random, left=True), draw(random, left=False)


def lived(
    seed: int, join: Callable[[Any, Any], Any], tmp_path: Path
) -> tuple[InMemoryCluster, Application, list[Message]]:
    random, (cluster, _) = Random(seed), world()
    for topic in ("l", "r"):
        cluster.create_topic(topic)
    left_first = random.random() < 0.5
    with pytest.MonkeyPatch.context() as patch:  # small limits, so that inputs arrive in pieces and are paused
        patch.setattr(loop, "RECORDS_PER_POLL", random.choice([1, 3, 2_000]))
        patch.setattr(reading_order, "BUFFERED_MAX", random.choice([4, 10_000]))
        patch.setattr(task_time, "REMOVED_AT_ONCE", random.choice([2, 10_000]))
        # Small limits, so that messages of one time need several records, and that times are dropped from memory.
        # Depending on the draw, memory drops the oldest times of a key, all times except the last one, or all other
        # keys.
        patch.setattr(joins, "TOGETHER_BYTES", random.choice([1, 40, 1_024]))
        patch.setattr(joins, "_SLACK_MS", random.choice([0, 20, 1_000]))
        patch.setattr(dated_values, "TRIM_FROM", random.choice([1, 64]))
        patch.setattr(dated_values, "LINE_BYTES", random.choice([400, 1 << 30]))
        patch.setattr(dated_values, "READ_BYTES", random.choice([400, 1 << 30]))
        patch.setattr(reading_order, "WOVEN_MIN", random.choice([2, 1_000]))
        # small limits, so that the store soon moves messages to sealed (older) records, and splits these records again
        # when late messages come
        patch.setattr(as_of, "OPEN_MAX", random.choice([1, 3, 16]))
        patch.setattr(as_of, "OPEN_KEPT", random.choice([1, 2]))
        patch.setattr(as_of, "OPEN_BYTES_MAX", random.choice([40, 80, 4_096]))
        patch.setattr(as_of, "SEALED_MAX", random.choice([1, 4]))
        patch.setattr(as_of, "SLACK_MS", random.choice([0, 60_000]))
        app = built(tmp_path, join, left_first=left_first)
        order = live_through(cluster, app, sides(random), random)
    return cluster, app, order


def check_asof(seed: int, tmp_path: Path) -> None:
    random = Random(-seed - 1)
    model = AsOfJoin(random.choice(["inner", "left"]), random.choice([0, 5, 100]), random.choice([None, 0, 20, 200]))
    how: Any = model.how

    def join(left: Any, right: Any) -> Any:
        return left.join_asof(right, how, both, model.grace, tolerance_ms=model.tolerance)

    cluster, _, order = lived(seed, join, tmp_path)
    assert list(map(repr, rows_of(cluster))) == list(map(repr, model.rows(order)))


def check_interval(seed: int, tmp_path: Path) -> None:
    random = Random(-seed - 1)
    how: Any = random.choice(["inner", "left", "right", "outer"])
    model = IntervalJoin(how, random.choice([0, 5, 60]), random.choice([0, 10, 60]), random.choice([0, 20, 1_000]))

    def join(left: Any, right: Any) -> Any:
        return left.join_interval(right, how, both, model.grace, "join", model.backward, model.forward)

    cluster, app, order = lived(seed, join, tmp_path)
    assert shown(rows_of(cluster)) == shown(model.rows(order))
    held: dict[tuple[bytes, str], list[Any]] = {}
    for (key, name), made in sorted(cluster.state(app, "join").items()):
        if name[:2] in ("l/", "r/"):
            is_sent = how in ("left" if name[0] == "l" else "right", "outer")
            assert len(made) == 1 or not is_sent or all(has for _, has in made)
            # the values of one time may be in several numbered records, so join them in the order of these numbers
            held.setdefault((key, name[:17]), []).extend(made)
    for (left, key), kept in model.kept.items():
        # In these joins, the store must record which messages of this side were matched.
        tells = how in ("left" if left else "right", "outer")
        for time_ms in {each.time_ms for each in kept}:
            stored = held.pop((key, f"{'l' if left else 'r'}/{time_ms:015d}"))
            expected = [(each.value, tells and each.matched) for each in kept if each.time_ms == time_ms]
            assert repr([(value, tells and has) for value, has in stored]) == repr(expected)
    for _, name in held:  # the remaining records have expired, and a later commit removes them
        lasts = (model.forward if name[0] == "l" else model.backward) + model.grace
        assert int(name[2:]) + lasts < model.now


def check_table(seed: int, tmp_path: Path) -> None:
    how: Any = Random(-seed - 1).choice(["inner", "left"])

    def join(left: Any, right: Any) -> Any:
        return left.join_table(right.to_table("rows"), how, both)

    cluster, app, order = lived(seed, join, tmp_path)
    assert list(map(repr, rows_of(cluster))) == list(map(repr, table_rows(order, how)))
    rows = {message.key: message.value for message in order if not message.left}
    expected = {(key, "row"): value for key, value in rows.items() if value is not None}
    assert repr(sorted(cluster.state(app, "rows").items())) == repr(sorted(expected.items()))


def check_tables(seed: int, tmp_path: Path) -> None:
    random = Random(-seed - 1)
    how: Any = random.choice(["inner", "left", "outer"])
    gone = random.choice(["", {}, "never"])  # a merge result of None means that there is no row
    model = TablesJoin(how, lambda left, right: repr(left) != repr(gone))

    def merged(left: Any, right: Any) -> Any:
        return [left, right] if model.is_row(left, right) else None

    def join(left: Any, right: Any) -> Any:
        joined = left.to_table("lefts").join(right.to_table("rights"), how, merged, "pairs")
        left.join_table(joined, "left", both).to_topic(Topic("seen"))
        return joined.to_stream()

    cluster, app, order = lived(seed, join, tmp_path)
    changes = [repr((at.time_ms, at.key, row and [*row])) for at, row, is_change in model.changes(order) if is_change]
    sent = [(each.timestamp_ms, each.key or b"", json.loads(each.value or b"null")) for _, each in cluster.read("out")]
    assert list(map(repr, sent)) == changes
    expected = {(key, "row"): [*row] for key, row in model.rows.items()}
    assert repr(sorted(cluster.state(app, "pairs").items())) == repr(sorted(expected.items()))
    model.rows.clear()
    seen = [(at.value, row and [*row]) for at, row, _ in model.changes(order) if at.left]
    assert [repr(tuple(json.loads(each.value or b""))) for _, each in cluster.read("seen")] == list(map(repr, seen))


def check_history(seed: int, tmp_path: Path) -> None:
    random = Random(-seed - 1)
    how: Any = random.choice(["inner", "left"])
    model = HistoryJoin(how, random.choice([1, 5, 30, 100, 1_000]))

    def join(left: Any, right: Any) -> Any:
        table = right.to_table("rows", history_retention=model.retention)
        table.to_stream().to_topic(Topic("changes"))
        return left.join_table(table, how, both)

    cluster, app, order = lived(seed, join, tmp_path)
    assert list(map(repr, rows_of(cluster))) == list(map(repr, model.rows(order)))
    changes = [(each.timestamp_ms, each.key, json.loads(each.value or b"null")) for _, each in cluster.read("changes")]
    assert list(map(repr, changes)) == [repr((each.time_ms, each.key, each.value)) for each in model.changes]
    stored = {key: value for (key, name), value in cluster.state(app, "rows").items() if name == "row"}
    expected = {key: kept.value for key, kept in model.newest.items() if kept.value is not None}
    assert repr(sorted(stored.items())) == repr(sorted(expected.items()))


CHECKS = [check_asof, check_interval, check_table, check_tables, check_history]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("check", CHECKS)
def test_joins_are_as_in_plain_python(check: Callable[[int, Path], None], seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def _falsy_is_none(patch: pytest.MonkeyPatch) -> None:
    former = as_of.AsOfLeft.__call__

    def call(self: Any, value: Any, key: Any, timestamp: int, headers: Any, state: Any) -> Any:
        held = state.get(as_of.RIGHT)
        return [] if held is not None and not held[-1][1] else former(self, value, key, timestamp, headers, state)

    patch.setattr(as_of.AsOfLeft, "__call__", call)


def _sealed_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(as_of.AsOfRight, "_seal", lambda *_: None)


def _only_the_newest_is_found(patch: pytest.MonkeyPatch) -> None:
    former = as_of.AsOfLeft._found

    def found(self: Any, timestamp: int, state: Any) -> Any:
        times = as_of._read_open(state)[1]
        return former(self, timestamp, state) if times and times[-1] <= timestamp else None

    patch.setattr(as_of.AsOfLeft, "_found", found)


def _late_right_is_the_newest(patch: pytest.MonkeyPatch) -> None:
    former = as_of.AsOfRight.__call__

    def call(self: Any, value: Any, key: Any, timestamp: int, headers: Any, state: Any) -> None:
        held = state.get(as_of.RIGHT)
        former(self, value, key, max(timestamp, held[-1][0]) if held else timestamp, headers, state)

    patch.setattr(as_of.AsOfRight, "__call__", call)


def _matched_row_again(patch: pytest.MonkeyPatch) -> None:
    former = joins.IntervalJoin._match

    def match(self: Any, side: Any, value: Any, context: Any) -> bool:
        return former(self, side, value, context) and False

    patch.setattr(joins.IntervalJoin, "_match", match)


def _outer_row_never(patch: pytest.MonkeyPatch) -> None:
    def ends(self: Any, name: str, time: int, context: Any) -> None:
        context.state.pop(name)

    patch.setattr(joins.IntervalJoin, "on_timer", ends)


def _ended_value_matches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dated_values.DatedValues, "stream_ms", property(lambda self: -(10**14)))


def _newest_of_a_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dated_values.DatedValues, "last", lambda self, line, time_ms: None)


def _falsy_row_is_none(patch: pytest.MonkeyPatch) -> None:
    def read(self: Any, value: Any, state: Any) -> list[Any]:
        row = state.get("row")
        return [self._merge(value, row)] if row else [] if self._inner else [self._merge(value, None)]

    patch.setattr(TableRead, "__call__", read)


def _falsy_pair_is_none(patch: pytest.MonkeyPatch) -> None:
    former = table_joins.JoinedRow._is_wanted
    patch.setattr(table_joins.JoinedRow, "_is_wanted", lambda self, *pair: former(self, *(row or None for row in pair)))


def _retraction_lost(patch: pytest.MonkeyPatch) -> None:
    former = table_joins.JoinedRow.__call__

    def call(self: Any, pair: Any, state: Any) -> list[Any]:
        return [each for each in former(self, pair, state) if each is not None]

    patch.setattr(table_joins.JoinedRow, "__call__", call)


def _retracted_row_stays(patch: pytest.MonkeyPatch) -> None:
    former = table_joins.JoinedRow.__call__

    def call(self: Any, pair: Any, state: Any) -> list[Any]:
        held = state.get("row")
        made = former(self, pair, state)
        if made == [None]:
            state.set("row", held)
        return made

    patch.setattr(table_joins.JoinedRow, "__call__", call)


def _newest_row_for_all(patch: pytest.MonkeyPatch) -> None:
    def read(self: Any, value: Any, key: Any, timestamp: int, headers: Any, state: Any) -> list[Any]:
        made: list[Any] = self.joined(value, state.get("row"))
        return made

    patch.setattr(versioned_tables.VersionedRead, "__call__", read)


def _row_of_a_younger_time(patch: pytest.MonkeyPatch) -> None:
    former = versioned_tables.VersionedRead.__call__

    def read(self: Any, value: Any, key: Any, timestamp: int, headers: Any, state: Any) -> list[Any]:
        return former(self, value, key, timestamp + 1, headers, state)

    patch.setattr(versioned_tables.VersionedRead, "__call__", read)


def _deletion_is_not_in_the_history(patch: pytest.MonkeyPatch) -> None:
    former = versioned_tables.VersionedPut.__call__

    def put(self: Any, value: Any, key: Any, timestamp: int, headers: Any, state: Any) -> bool:
        made = former(self, value, key, timestamp, headers, state)
        for name, version in state.items(prefix="past/"):
            if not version:
                state.delete(name)
        return made

    patch.setattr(versioned_tables.VersionedPut, "__call__", put)


def _late_row_is_the_newest(patch: pytest.MonkeyPatch) -> None:
    former = versioned_tables.VersionedPut.__call__

    def put(self: Any, value: Any, key: Any, timestamp: int, headers: Any, state: Any) -> bool:
        return former(self, value, key, max(timestamp, state.get("since", 0)), headers, state)

    patch.setattr(versioned_tables.VersionedPut, "__call__", put)


def _read_as_it_comes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading_order, "reach", lambda piece, first, most, bound, rank: most)


def _waits_for_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading_order.ReadingOrder, "_complete", lambda self, now, is_ended: True)


@pytest.mark.parametrize(
    ("bug", "check"),
    [
        (_falsy_is_none, check_asof),
        (_sealed_is_lost, check_asof),
        (_only_the_newest_is_found, check_asof),
        (_late_right_is_the_newest, check_asof),
        (_matched_row_again, check_interval),
        (_outer_row_never, check_interval),
        (_ended_value_matches, check_interval),
        (_newest_of_a_time, check_interval),
        (_read_as_it_comes, check_table),
        (_waits_for_nothing, check_table),
        (_falsy_row_is_none, check_table),
        (_falsy_pair_is_none, check_tables),
        (_retraction_lost, check_tables),
        (_retracted_row_stays, check_tables),
        (_newest_row_for_all, check_history),
        (_row_of_a_younger_time, check_history),
        (_deletion_is_not_in_the_history, check_history),
        (_late_row_is_the_newest, check_history),
    ],
)
def test_planted_bugs_are_found(
    bug: Callable[[pytest.MonkeyPatch], None], check: Callable[[int, Path], None], tmp_path: Path
) -> None:
    assert is_found(bug, check, tmp_path)
