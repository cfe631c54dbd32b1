"""A key may have any number of open windows.

Record sizes and costs do not grow, and all records are removed at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.changelog.format import META_KEY, split_key
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.window_keys import CLOCK, OWN_KEY
from tests.mechanics.tiers import variants
from tests.window_apps import T, build, send

HOUR = 3_600_000
Place = Callable[[StreamingDataFrame], StreamingDataFrame]

MANY: dict[str, Place] = {
    "tumbling by key": lambda frame: frame.tumbling_window(10, HOUR, "w").count().final(),
    "sessions by key": lambda frame: frame.session_window(5, HOUR, "w").count().final(),
    "sessions by partition": lambda frame: frame.session_window(5, HOUR, "w").count().final("partition"),
}


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


def results(cluster: InMemoryCluster) -> list[tuple[bytes | None, int, int, Any]]:
    made = [(record.key, json.loads(record.value or b"")) for _, record in cluster.read("out")]
    return [(key, each["start"] - T, each["end"] - T, each["value"]) for key, each in made]


def written(cluster: InMemoryCluster, app: Application, since: int) -> tuple[int, list[tuple[bytes, str, int]]]:
    """The end of the changelog, and the records written since: message key, state key, bytes."""
    changelog = app.topology().changelog_of("w")
    assert changelog is not None
    records = [record for _, record in cluster.read(changelog.name)]
    made = [(record.key, len(record.value or b"")) for record in records[since:]]
    return len(records), [(*split_key(key), size) for key, size in made if key and key != META_KEY]


@pytest.mark.parametrize("kind", variants(MANY))
def test_neither_records_nor_reads_grow_with_what_a_key_has_open(
    cluster: InMemoryCluster, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither records nor reads grow with the open windows of a key. Late messages belong to windows in the middle."""
    reads: list[bytes] = []
    former = StoreState.stored

    def counted(self: StoreState, message_key: bytes, first: bytes) -> Generator[tuple[bytes, bytes]]:
        for key, raw in former(self, message_key, first):
            reads.append(key)
            yield key, raw

    monkeypatch.setattr(StoreState, "stored", counted)
    app, costs, opened = build(MANY[kind], commit_every=10), list[tuple[int, int, int]](), 0
    for upto in (100, 400, 1_600):
        for at in range(opened, upto):
            send(cluster, at * 20)
        cluster.run(app)
        end, _ = written(cluster, app, 0)
        reads.clear()
        for number in range(20):
            # this message opens a window; the next one belongs to an old window that is open
            send(cluster, (upto + number) * 20)
            send(cluster, upto * 10 + number * 20 + 1)
        opened = upto + 20
        cluster.run(app)
        made = written(cluster, app, end)[1]
        costs.append((max(size for *_, size in made), len(made), len(reads)))
    (size, count, rows), *later = costs
    for most, number, looked in later:
        assert (most <= size + 20, number <= count + 5, looked <= rows + 40) == (True, True, True), costs
    send(cluster, 2 * HOUR)
    send(cluster, 2 * HOUR + 1)
    cluster.run(app)
    sent = results(cluster)
    assert len(sent) == len(set(sent)) == 1_620
    assert sum(value for *_, value in sent) == 1_620 + 60


QUIET: dict[str, Place] = {
    "tumbling": lambda frame: frame.tumbling_window(10, 5, "w", retention=100).count().final(),
    "hopping": lambda frame: frame.hopping_window(20, 10, 5, "w", retention=100).count().final(),
    "sessions": lambda frame: frame.session_window(10, 5, "w", retention=100).count().final(),
    "tumbling, each result": lambda frame: frame.tumbling_window(10, 5, "w", retention=100).count().current(),
    "sessions, each result": lambda frame: frame.session_window(10, 5, "w", retention=100).count().current(),
}


@pytest.mark.parametrize("kind", QUIET)
def test_windows_of_a_key_that_comes_no_more_are_sent_and_leave_when_their_retention_is_over(
    cluster: InMemoryCluster, kind: str
) -> None:
    app = build(QUIET[kind])
    for at in (3, 4, 22):
        send(cluster, at, key=b"quiet")
    send(cluster, 2_000, key=b"never-counts-as-late")
    cluster.run(app)
    send(cluster, 3, key=b"late")  # this message is late by stream time, so the store gets no record of its key
    for at in (4_000, 4_001):
        send(cluster, at, key=b"other")
    cluster.run(app)
    cluster.run(app)
    quiet = [each for each in results(cluster) if each[0] == b"quiet"]
    wanted = [(3, 2), (22, 1)] if "sessions" in kind else [(0, 2), (20, 1)]
    if kind == "hopping":
        wanted = [(-10, 2), (0, 2), (10, 1), (20, 1)]
    last = {start: value for _, start, _, value in quiet}
    assert sorted(last.items()) == wanted
    assert "each" in kind or len(quiet) == len(wanted)
    state = cluster.state(app, "w")
    assert {key for key, name in state if key != OWN_KEY} == {b"other"}
    assert all(b"other".hex() in name or name == CLOCK for key, name in state if key == OWN_KEY)
