"""Groups of a table's rows equal a plain Python model, in any order of reading and despite kills.

The tests also find bugs that are planted in the engine's code on purpose.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, Collect, Count, InMemoryCluster, Mean, Sum
from holdfast.processors.engine.aggregates import retractable
from holdfast.processors.engine.aggregates.retractable import RetractableColumns
from holdfast.processors.engine.joins import row_changes
from holdfast.processors.engine.joins.row_changes import GroupRows, MovedRows, RowFilter, moved_key
from holdfast.processors.engine.runtime import loop
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.oracles.grouped_tables import aggregated, grouped
from tests.simulation.disk import SimulatedDisk
from tests.window_lives import live, world

SEEDS = variants(range(2_000), tested=40)
LIVES = variants(range(500), tested=4)
KEYS = [b"a", b"b", b"c", b"", b"\xff/"]
GROUPS = ["x", "y", "", "\xff/"]
NUMBERS = [0, 0.1, 0.2, 0.7, 1e300, -1e300, 2**53 + 1, -3, 5]
LIMIT = 2


def columns() -> dict[str, Any]:
    return {"n": Count(), "total": Sum("v"), "average": Mean("v"), "all": Collect("v", limit=LIMIT)}


def drawn_row(random: Random) -> Any:
    if random.random() < 0.2:
        return None
    to = random.choice([None, 7, *GROUPS])
    return {"to": to, "v": random.choice(NUMBERS), **({"note": random.randrange(3)} if random.random() < 0.3 else {})}


def wanted(row: Any) -> bool:
    return bool(row["v"] != 5)


def group_of(row: Any) -> bytes | None:
    return None if row["to"] is None else str(row["to"]).encode()


def expected_of(rows: dict[bytes, Any], *, filtered: bool) -> dict[bytes, Any]:
    kept = {key: row for key, row in rows.items() if row is not None and (not filtered or wanted(row))}
    return {group: aggregated(of, "v", LIMIT) for group, of in grouped(kept, group_of).items()}


class Rows(dict[str, Any]):
    """The state of one key, as steps see it. Values are stored as JSON."""

    def __init__(self, message_key: bytes) -> None:
        super().__init__()
        self.message_key = message_key

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.pop(key, None)

    def items(self, prefix: str = "", limit: int | None = None) -> list[tuple[str, Any]]:  # type: ignore[override]
        return [(key, self[key]) for key in sorted(self) if key.startswith(prefix)][:limit]


class Store(dict[bytes, Rows]):
    def __missing__(self, key: bytes) -> Rows:
        self[key] = Rows(key)
        return self[key]


class Network:
    """The steps of a grouping.

    A queue leads from each partition of rows to each partition of groups. The queues are read in random order.
    """

    def __init__(self, random: Random, *, filtered: bool) -> None:
        made = RetractableColumns(columns())
        self.random, self.filtered = random, filtered
        self.filter, self.rows, self.groups = RowFilter(wanted), MovedRows("to", made), GroupRows(made)
        self.kept, self.sent, self.result = Store(), Store(), Store()
        self.queues: dict[tuple[int, int], deque[tuple[bytes, Any]]] = defaultdict(deque)
        self.changes: list[tuple[bytes, Any]] = []

    def change(self, key: bytes, row: Any) -> None:
        row = json.loads(json.dumps(row))
        for changed in self.filter(row, self.kept[key]) if self.filtered else [row]:  # type: ignore[arg-type]
            for moved in self.rows(changed, self.sent[key]):  # type: ignore[arg-type]
                group = moved_key(moved)
                self.queues[sum(key) % 2, sum(group) % 3].append((group, json.loads(json.dumps(moved))))

    def step(self) -> bool:
        ready = [place for place, queue in self.queues.items() if queue]
        if not ready:
            return False
        group, moved = self.queues[self.random.choice(ready)].popleft()
        self.changes += [(group, row) for row in self.groups(moved, self.result[group])]  # type: ignore[arg-type]
        return True


def check_order(seed: int, _: Path) -> None:
    """Change rows at random, read the queues in random order, and compare the groups with the model."""
    random = Random(seed)
    filtered = random.random() < 0.5
    network, rows = Network(random, filtered=filtered), dict[bytes, Any]()
    for _ in range(random.randint(0, 60)):
        key, row = random.choice(KEYS), drawn_row(random)
        network.change(key, row)
        rows[key] = row
        for _ in range(random.choice([0, 0, 1, 4, 30])):
            network.step()
    while network.step():
        pass
    expected = expected_of(rows, filtered=filtered)
    check_rows(network.result, network.changes, expected)
    of_rows = {key for key, state in network.sent.items() if state}
    assert of_rows == {
        key for key, row in rows.items() if row and row["to"] is not None and (not filtered or wanted(row))
    }
    assert {group for group, state in network.result.items() if state} == set(expected)


def check_rows(stored: dict[bytes, Any], changes: list[tuple[bytes, Any]], expected: dict[bytes, Any]) -> None:
    """Check the stored rows. Each change must differ from the former change, and the last change must equal the row."""
    assert shown({key: state["row"] for key, state in stored.items() if "row" in state}) == shown(expected)
    newest: dict[bytes, Any] = {}
    for key, row in changes:
        assert repr(newest.get(key)) != repr(row)
        newest[key] = row
    assert shown({key: row for key, row in newest.items() if row is not None}) == shown(expected)


def shown(rows: dict[bytes, Any]) -> list[str]:
    """Rows as texts, because 1 and 1.0 are equal in Python but not as output."""
    return sorted(map(repr, rows.items()))


def check_lives(seed: int, folder: Path) -> None:
    """Compare the groups with the model after a run on the engine with kills, lost disks and restarts."""
    random, (cluster, _) = Random(seed), world()
    cluster.create_topic("rows", partitions=random.choice([1, 2, 3]), config={"cleanup.policy": "compact"})
    filtered, options = random.random() < 0.5, random.choice([{}, {"changelog": "source"}])
    app = application(folder, options, filtered=filtered)
    disk, rows = SimulatedDisk(), dict[bytes, Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "RECORDS_PER_POLL", random.choice([1, 3, 2_000]))
        for _ in range(random.randint(1, 3)):
            feed(cluster, random, rows)
            for _ in range(2):
                live(cluster, app, disk if random.random() < 0.5 else SimulatedDisk(), random)
        live(cluster, app, SimulatedDisk(), None)
    stored: dict[bytes, dict[str, Any]] = {}
    for (key, name), value in cluster.state(app, "groups").items():
        stored.setdefault(key, {})[name] = value
    expected = expected_of(rows, filtered=filtered)
    check_rows(stored, list(sent(cluster, "out")), expected)
    assert set(stored) == set(expected)


def application(folder: Path, options: dict[str, Any], *, filtered: bool) -> Application:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_dir=folder, commit_every=7
    )
    table = app.table(app.topic("rows"), **options)
    table = table.filter(wanted) if filtered else table
    table.group_by("to").aggregate(columns(), name="groups").to_stream().to_topic(app.topic("out"))
    return app


def feed(cluster: InMemoryCluster, random: Random, rows: dict[bytes, Any]) -> None:
    at = 0
    for _ in range(random.randint(0, 40)):
        at += random.choice([0, 1, 10])
        key, row = random.choice(KEYS), drawn_row(random)
        value = None if row is None else json.dumps(row).encode()
        cluster.produce("rows", value, key, timestamp_ms=max(1, at - random.choice([0, 0, 20])))
        rows[key] = row


def sent(cluster: InMemoryCluster, topic: str) -> Iterator[tuple[bytes, Any]]:
    for _, record in cluster.read(topic):
        yield record.key or b"", None if record.value is None else json.loads(record.value)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_groups_are_the_same_in_any_order_of_reading(seed: int, tmp_path: Path) -> None:
    check_order(seed, tmp_path)


@pytest.mark.parametrize("seed", LIVES)
def test_the_groups_are_the_same_over_kills(seed: int, tmp_path: Path) -> None:
    check_lives(seed, tmp_path)


def _replace_of_moved(patch: pytest.MonkeyPatch, change: Callable[[list[Any]], list[Any]]) -> None:
    former = MovedRows.__call__
    patch.setattr(MovedRows, "__call__", lambda self, row, state: change(former(self, row, state)))


def _former_row_stays(patch: pytest.MonkeyPatch) -> None:
    _replace_of_moved(patch, lambda made: [[group, key, [], into] for group, key, _, into in made])


def _former_group_is_not_told(patch: pytest.MonkeyPatch) -> None:
    _replace_of_moved(patch, lambda made: made[-1:])


def _deletion_is_not_told(patch: pytest.MonkeyPatch) -> None:
    former = MovedRows.__call__
    patch.setattr(MovedRows, "__call__", lambda self, row, state: [] if row is None else former(self, row, state))


def _row_without_a_group_stays(patch: pytest.MonkeyPatch) -> None:
    former = MovedRows.__call__
    patch.setattr(
        MovedRows,
        "__call__",
        lambda self, row, state: [] if row is not None and row["to"] is None else former(self, row, state),
    )


def _present_items_are_taken_out(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the new items of a changed row are subtracted, instead of the former items."""
    _replace_of_moved(patch, lambda made: [[group, key, into and out and into, into] for group, key, out, into in made])


def _sums_of_floats(patch: pytest.MonkeyPatch) -> None:
    def added(held: Any, item: Any, sign: int) -> Any:
        total, exponent, floats = held or (0, 0, 0)
        rounded = total / (1 << exponent) + sign * item if floats or isinstance(item, float) else total + sign * item
        top, bottom = rounded.as_integer_ratio()
        return [top, bottom.bit_length() - 1, floats + sign * isinstance(item, float)]

    patch.setattr(retractable, "_sum", added)


def _empty_group_stays(patch: pytest.MonkeyPatch) -> None:
    former = RetractableColumns.row

    def row(self: Any, held: Any, collected: Any) -> Any:
        return former(self, held or {"format": 1, "rows": 0, "columns": {}}, collected) or {"n": 0}

    patch.setattr(RetractableColumns, "row", row)


def _collected_item_stays(patch: pytest.MonkeyPatch) -> None:
    former = Rows.delete
    patch.setattr(Rows, "delete", lambda self, key: None if key.startswith("items/") else former(self, key))


def _unmatched_row_stays(patch: pytest.MonkeyPatch) -> None:
    former = RowFilter.__call__
    patch.setattr(
        RowFilter,
        "__call__",
        lambda self, row, state: [] if row is not None and not wanted(row) else former(self, row, state),
    )


def _equal_numbers_are_equal_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(row_changes, "_is_equal", lambda one, other: one == other)
    patch.setattr(sys.modules[__name__], "NUMBERS", [1, 1.0, 0, 0.0])


def _unchanged_row_is_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(row_changes, "_is_equal", lambda one, other: one is None and other is None)


@pytest.mark.parametrize(
    "bug",
    [
        _former_row_stays,
        _former_group_is_not_told,
        _deletion_is_not_told,
        _row_without_a_group_stays,
        _present_items_are_taken_out,
        _sums_of_floats,
        _empty_group_stays,
        _collected_item_stays,
        _unmatched_row_stays,
        _equal_numbers_are_equal_rows,
        _unchanged_row_is_sent,
    ],
)
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    assert is_found(bug, check_order, tmp_path)
