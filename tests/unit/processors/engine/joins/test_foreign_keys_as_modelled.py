"""Joins by a foreign key equal a plain Python model, in any order of reading and despite kills.

The tests also find bugs that are planted in the engine's code on purpose.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.joins import foreign_keys
from holdfast.processors.engine.joins.foreign_keys import (
    Answer,
    ForeignJoined,
    ForeignKeys,
    Subscriptions,
    answer_key,
    subscription_key,
)
from holdfast.processors.engine.runtime import loop
from holdfast.processors.engine.runtime.reading import reading_order
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.simulation.disk import SimulatedDisk
from tests.window_lives import live, world

SEEDS = variants(range(2_000), tested=40)
LIVES = variants(range(500), tested=8)
LEFT_KEYS, RIGHT_KEYS = [b"a", b"b", b"", b"\xff/"], ["x", "y", "", "x/"]
RIGHT_ROWS: list[Any] = [0, "", False, {}, [], 1, "z", None, None]


def left_row(random: Random) -> Any:
    return random.choice(
        [None, None, {}, {"to": None}, 7, *({"to": key, "n": random.randrange(9)} for key in RIGHT_KEYS)]
    )


def both(left: Any, right: Any) -> list[Any]:
    return [left, right]


def field_to(row: Any) -> Any:
    return row.get("to") if isinstance(row, dict) else None


def joined(how: str, left: dict[bytes, Any], right: dict[bytes, Any]) -> dict[bytes, Any]:
    """The rows that the join must have at the end, computed from both tables.

    A row with the value None does not exist.
    """
    rows = {}
    for key, row in left.items():
        foreign = field_to(row)
        found = None if foreign is None else right.get(foreign.encode())
        if found is not None or how == "left":
            rows[key] = [row, found]
    return rows


class Rows(dict[str, Any]):
    """The state of one key, as functions see it. Values are stored as JSON."""

    def __init__(self, message_key: bytes) -> None:
        super().__init__()
        self.message_key = message_key

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.pop(key, None)

    def exists(self, key: str) -> bool:
        return key in self

    def items(self, prefix: str = "", start: str = "", limit: int | None = None) -> list[tuple[str, Any]]:  # type: ignore[override]
        return [(key, self[key]) for key in sorted(self) if key.startswith(prefix) and key >= start][:limit]


class Store(dict[bytes, Rows]):
    def __missing__(self, key: bytes) -> Rows:
        self[key] = Rows(key)
        return self[key]


class OneContext:
    """The context that a processor gets. The test decides when its timer fires."""

    def __init__(self, state: Rows, timestamp: int, timers: dict[bytes, int]) -> None:
        self.state, self.timestamp, self.emitted, self._timers = state, timestamp, list[Any](), timers

    def emit(self, value: Any) -> None:
        self.emitted.append(value)

    def now(self) -> int:
        return 1

    def set_timer(self, name: str, at: int, clock: str) -> None:
        self._timers[self.state.message_key] = at

    def cancel_timer(self, name: str) -> bool:
        return self._timers.pop(self.state.message_key, None) is not None


class Network:
    """The four steps of a join, connected by queues. A random queue is read next; each queue is read in order."""

    def __init__(self, how: Any, random: Random) -> None:
        self.random = random
        self.keys, self.joined = ForeignKeys("to", how), ForeignJoined(how, both)
        self.sent, self.subscriptions, self.right, self.result = Store(), Store(), Store(), Store()
        self.queues: dict[tuple[str, int], deque[tuple[bytes, int, Any]]] = defaultdict(deque)
        self.timers: dict[bytes, int] = {}
        self.changes: list[tuple[bytes, Any]] = []

    def queue(self, kind: str, key: bytes, time_ms: int, value: Any) -> None:
        self.queues[kind, sum(key) % 3].append((key, time_ms, json.loads(json.dumps(value))))

    def step(self) -> bool:
        """Process one message of a queue, or fire a timer. Returns False if no message and no timer is left."""
        ready = [place for place, queue in self.queues.items() if queue]
        if self.timers and (not ready or self.random.random() < 0.3):
            key = self.random.choice(list(self.timers))
            at = self.timers.pop(key)
            self._subscriptions(key, 0, lambda context: Subscriptions().on_timer("more", at, context))  # type: ignore[arg-type]
            return True
        if not ready:
            return False
        kind, number = self.random.choice(ready)
        key, time_ms, value = self.queues[kind, number].popleft()
        getattr(self, f"_take_{kind}")(key, time_ms, value)
        return True

    def _take_left(self, key: bytes, time_ms: int, row: Any) -> None:
        for made in self.keys(row, key, time_ms, None, self.sent[key]):  # type: ignore[arg-type]
            self.queue("subscription", subscription_key(made), time_ms, made)

    def _take_right(self, key: bytes, time_ms: int, row: Any) -> None:
        self.right[key].pop("row", None)
        if row is not None:
            self.right[key].set("row", row)
        self._subscriptions(key, time_ms, lambda context: Subscriptions().on_message((False, row), context))  # type: ignore[arg-type]

    def _take_subscription(self, key: bytes, time_ms: int, value: Any) -> None:
        self._subscriptions(key, time_ms, lambda context: Subscriptions().on_message((True, value), context))  # type: ignore[arg-type]

    def _subscriptions(self, key: bytes, time_ms: int, run: Callable[[OneContext], None]) -> None:
        context = OneContext(self.subscriptions[key], time_ms, self.timers)
        run(context)
        for emitted in context.emitted:
            made = Answer()(emitted, self.right[key])  # type: ignore[arg-type]
            self.queue("answer", answer_key(made), emitted[0], made)

    def _take_answer(self, key: bytes, time_ms: int, value: Any) -> None:
        self.changes += [(key, row) for row in self.joined(value, self.result[key])]  # type: ignore[arg-type]


def check_order(seed: int, _: Path) -> None:
    """Change both tables at random, read the queues in random order, and compare the result with the model."""
    random = Random(seed)
    how = random.choice(["inner", "left"])
    left: dict[bytes, Any] = {}
    right: dict[bytes, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreign_keys, "ANSWERED_AT_ONCE", random.choice([1, 2, 1_000]))
        network = Network(how, random)
        for at in range(random.randint(0, 60)):
            if random.random() < 0.5:
                key, row, table, kind = random.choice(LEFT_KEYS), left_row(random), left, "left"
            else:
                key, row = random.choice(RIGHT_KEYS).encode(), random.choice(RIGHT_ROWS)
                table, kind = right, "right"
            network.queue(kind, key, max(1, at - random.choice([0, 0, 5, 40])), row)
            table.pop(key, None)
            if row is not None:
                table[key] = row
            for _ in range(random.choice([0, 0, 1, 4, 30])):
                network.step()
        while network.step():
            pass
    expected = joined(how, left, right)
    found = {key: rows["row"] for key, rows in network.result.items() if "row" in rows}
    assert shown(found) == shown(expected)
    check_changes(network.changes, expected)
    kept = {(key, name[2:].encode("latin-1")) for key, rows in network.subscriptions.items() for name in rows}
    assert kept == {(field_to(row).encode(), key) for key, row in left.items() if field_to(row) is not None}


def check_changes(changes: list[tuple[bytes, Any]], expected: dict[bytes, Any]) -> None:
    """Check that the last change of each key equals the key's row. A deletion may only follow a change with a row."""
    by_key: dict[bytes, list[Any]] = defaultdict(list)
    for key, row in changes:
        assert row is not None or (by_key[key] and by_key[key][-1] is not None)
        by_key[key].append(row)
    last = {key: rows[-1] for key, rows in by_key.items() if rows[-1] is not None}
    assert shown(last) == shown(expected)


def shown(rows: dict[bytes, Any]) -> list[str]:
    """Rows as texts, because False and 0 are equal in Python but not as output."""
    return sorted(map(repr, rows.items()))


def check_lives(seed: int, folder: Path) -> None:
    """Compare the result with the model after a run on the engine with kills, lost disks and restarts."""
    random, (cluster, _) = Random(seed), world()
    how: Any = random.choice(["inner", "left"])
    for topic in ("l", "r", "end"):
        cluster.create_topic(topic, partitions=random.choice([1, 3]) if topic == "l" else 2)
    app = application(folder, how, random)
    disk = SimulatedDisk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "RECORDS_PER_POLL", random.choice([1, 3, 2_000]))
        patch.setattr(reading_order, "BUFFERED_MAX", random.choice([4, 10_000]))
        patch.setattr(foreign_keys, "ANSWERED_AT_ONCE", random.choice([1, 2, 1_000]))
        for _ in range(random.randint(1, 3)):
            feed(cluster, random)
            for _ in range(2):
                live(cluster, app, disk if random.random() < 0.5 else SimulatedDisk(), random)
        live(cluster, app, SimulatedDisk(), None)
    left, right = (dict(rows(cluster, topic)) for topic in ("l", "r"))
    expected = joined(how, *({key: row for key, row in each.items() if row is not None} for each in (left, right)))
    found = {key: row for (key, name), row in cluster.state(app, "pairs").items() if name == "row"}
    assert shown(found) == shown(expected)
    check_changes(list(rows(cluster, "out")), expected)


def application(folder: Path, how: Any, random: Random) -> Application:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_dir=folder, commit_every=7
    )
    tables = {name: app.table(app.topic(name)) for name in random.choice(["lr", "rl"])}
    pairs = tables["l"].join(tables["r"], how, both, "pairs", on="to")
    pairs.to_stream().to_topic(app.topic("out"))
    return app


def feed(cluster: InMemoryCluster, random: Random) -> None:
    at = 0
    for _ in range(random.randint(0, 40)):
        at += random.choice([0, 1, 10])
        is_left = random.random() < 0.5
        key = random.choice(LEFT_KEYS) if is_left else random.choice(RIGHT_KEYS).encode()
        row = left_row(random) if is_left else random.choice(RIGHT_ROWS)
        value = None if row is None else json.dumps(row).encode()
        cluster.produce("l" if is_left else "r", value, key, timestamp_ms=max(1, at - random.choice([0, 0, 20])))


def rows(cluster: InMemoryCluster, topic: str) -> Iterator[tuple[bytes, Any]]:
    for _, record in cluster.read(topic):
        yield record.key or b"", None if record.value is None else json.loads(record.value)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_result_is_the_same_in_any_order_of_reading(seed: int, tmp_path: Path) -> None:
    check_order(seed, tmp_path)


@pytest.mark.parametrize("seed", LIVES)
def test_the_result_is_the_same_over_kills(seed: int, tmp_path: Path) -> None:
    check_lives(seed, tmp_path)


def _version_is_ignored(patch: pytest.MonkeyPatch) -> None:
    former = ForeignJoined.__call__
    patch.setattr(
        ForeignJoined, "__call__", lambda self, answer, state: former(self, [answer[0], 10**15, *answer[2:]], state)
    )


def _version_begins_again(patch: pytest.MonkeyPatch) -> None:
    former = ForeignKeys.__call__

    def call(self: Any, row: Any, key: Any, timestamp: int, headers: Any, state: Any) -> Any:
        made = former(self, row, key, 0, headers, state)
        if row is None:
            state.delete("sent")
        return made

    patch.setattr(ForeignKeys, "__call__", call)


def _retraction_lost(patch: pytest.MonkeyPatch) -> None:
    former = ForeignJoined.__call__

    def call(self: Any, answer: Any, state: Any) -> list[Any]:
        return [each for each in former(self, answer, state) if each is not None]

    patch.setattr(ForeignJoined, "__call__", call)


def _former_key_keeps_the_row(patch: pytest.MonkeyPatch) -> None:
    former = ForeignKeys.__call__

    def call(self: Any, *arguments: Any) -> Any:
        return [made for made in former(self, *arguments) if made[3] != "gone"]

    patch.setattr(ForeignKeys, "__call__", call)


def _last_answer_wins(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a late answer for the former foreign key overwrites the answer for the new one."""

    def call(self: Any, answer: Any, state: Any) -> list[Any]:
        state.delete("version")
        return former(self, answer, state)

    former = ForeignJoined.__call__
    patch.setattr(ForeignJoined, "__call__", call)


def _deletion_is_not_told(patch: pytest.MonkeyPatch) -> None:
    former = ForeignKeys.__call__

    def call(self: Any, row: Any, *arguments: Any) -> Any:
        return [] if row is None else former(self, row, *arguments)

    patch.setattr(ForeignKeys, "__call__", call)


def _falsy_right_row_is_none(patch: pytest.MonkeyPatch) -> None:
    former = foreign_keys._written
    patch.setattr(foreign_keys, "_written", lambda row: former(row or None))


def _only_the_first_are_answered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subscriptions, "on_timer", lambda self, name, time, context: None)


def _first_are_skipped_by_a_newer_change(patch: pytest.MonkeyPatch) -> None:
    former = Subscriptions._answer

    def answer(self: Any, context: Any, start: str, at: int, fired: int = 0) -> None:
        held = context.state.get("next")
        former(self, context, start if held is None else max(start, held[0]), at, fired)

    patch.setattr(Subscriptions, "_answer", answer)


@pytest.mark.parametrize(
    "bug",
    [
        _version_is_ignored,
        _version_begins_again,
        _retraction_lost,
        _former_key_keeps_the_row,
        _last_answer_wins,
        _deletion_is_not_told,
        _falsy_right_row_is_none,
        _only_the_first_are_answered,
        _first_are_skipped_by_a_newer_change,
    ],
)
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    assert is_found(bug, check_order, tmp_path)
