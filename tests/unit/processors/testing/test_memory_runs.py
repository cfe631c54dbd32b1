"""Running an application on the in-memory cluster, as users do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition
from holdfast.infra.settings import load_settings
from holdfast.processors.testing import InlineProcess, InMemoryCluster, VirtualClock

PARTITIONS = 3


def count(value: int, state: Any) -> int:
    if value < 0:
        raise ValueError(f"{value} can't be counted")
    state.set("n", state.get("n", 0) + 1)
    return int(state.get("n"))


def build(**options: Any) -> Application:
    app = Application(consumer_group="counting", auto_offset_reset="earliest", loglevel=None, **options)
    app.dataframe(app.topic("in")).apply(count, stateful=True, store="counts").to_topic(app.topic("out"))
    return app


def feed(cluster: InMemoryCluster, *numbers: int) -> None:
    for number in numbers:
        cluster.produce("in", json.dumps(number).encode(), b"k%d" % (abs(number) % 4))


def counts(cluster: InMemoryCluster) -> dict[tuple[bytes, str], Any]:
    return cluster.state(build(), "counts")


@pytest.fixture(params=["range", "roundrobin", "cooperative-sticky"])
def cluster(request: pytest.FixtureRequest) -> InMemoryCluster:
    made = InMemoryCluster()
    made.assignor = request.param
    made.create_topic("in", partitions=PARTITIONS)
    return made


def test_all_input_is_processed_and_committed(cluster: InMemoryCluster) -> None:
    feed(cluster, *range(40))
    cluster.run(build())
    assert counts(cluster) == {(b"k%d" % key, "n"): 10 for key in range(4)}
    ends = {place: cluster.log_end(place) for place in (Partition("in", number) for number in range(PARTITIONS))}
    assert cluster.committed_offsets("counting") == {place: end for place, end in ends.items() if end}
    assert len(cluster.read("out")) == 40


def test_nothing_is_left_open(cluster: InMemoryCluster) -> None:
    feed(cluster, *range(8))
    cluster.run(build())
    for topic in ("out", "counting-counts-changelog"):
        for number in range(PARTITIONS):
            place = Partition(topic, number)
            assert cluster.last_stable_offset(place) == cluster.log_end(place)


def test_so_many_messages_and_no_more(cluster: InMemoryCluster) -> None:
    feed(cluster, *range(20))
    cluster.run(build(), count=5)
    assert len(cluster.read("out")) == 5
    cluster.run(build())
    assert counts(cluster) == {(b"k%d" % key, "n"): 5 for key in range(4)}


def test_a_failing_function_stops_the_run_with_all_before_it_committed(cluster: InMemoryCluster) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    feed(cluster, 0, 1, -2, 3)
    with pytest.raises(Exception, match="can't be counted"):
        cluster.run(build())
    assert len(cluster.read("out")) == 2
    assert cluster.committed_offsets("counting") == {Partition("in", 0): 2}


def test_state_is_found_on_the_disk_or_restored_from_the_changelog(cluster: InMemoryCluster, tmp_path: Path) -> None:
    for state_dir in (tmp_path / "disk", tmp_path / "disk", tmp_path / "another", None):
        feed(cluster, *range(4))
        cluster.run(build(state_dir=state_dir))
        for number in range(PARTITIONS):
            cluster.compact(Partition("counting-counts-changelog", number), drop_tombstones=True)
    assert counts(cluster) == {(b"k%d" % key, "n"): 4 for key in range(4)}


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_without_changelogs_state_is_on_the_disk(cluster: InMemoryCluster, tmp_path: Path, guarantee: Any) -> None:
    for _ in range(3):
        feed(cluster, *range(4))
        cluster.run(build(state_dir=tmp_path, use_changelog_topics=False, processing_guarantee=guarantee))
    assert sorted(json.loads(record.value or b"") for _, record in cluster.read("out")) == [1] * 4 + [2] * 4 + [3] * 4


class Killed(BaseException):
    """Raised in place of SIGKILL."""


class Doomed(InlineProcess):
    """A process that is killed at the point ``at`` of a client call, like "flush:before". Later calls do nothing."""

    at = ""

    def point(self, name: str) -> None:
        if name == self.at or self.frozen:
            self.frozen = True
            raise Killed


@pytest.mark.parametrize(
    "at",
    [
        "poll",
        "produce:before",
        "flush:before",
        "flush:after",
        "send_offsets:before",
        "send_offsets:after",
        "commit:before",
        "commit:sent",
        "commit:after",
    ],
)
def test_a_kill_loses_and_doubles_nothing(cluster: InMemoryCluster, at: str, tmp_path: Path) -> None:
    feed(cluster, *range(20))
    process = Doomed(cluster.clock)
    process.at = at
    with pytest.raises(Killed):
        build(state_dir=tmp_path).run_on(cluster.connect(process), load_settings(home=tmp_path), timeout=5.0)
    cluster.run(build(state_dir=tmp_path))
    assert counts(cluster) == {(b"k%d" % key, "n"): 5 for key in range(4)}
    outputs: dict[bytes | None, list[int]] = {}
    for _, record in cluster.read("out"):
        outputs.setdefault(record.key, []).append(json.loads(record.value or b"0"))
    assert outputs == {b"k%d" % key: [1, 2, 3, 4, 5] for key in range(4)}


def test_a_time_that_the_topic_does_not_take_is_refused_with_the_clock_to_count_from() -> None:
    now_ms = 1_800_000_000_000
    made = InMemoryCluster()
    made.create_topic("in")
    with pytest.raises(
        KafkaFailed, match=r"100,000,000 s ahead of the cluster's clock \(1700000000000 ms\).*VirtualClock"
    ):
        made.produce("in", b"1", timestamp_ms=now_ms)
    later = InMemoryCluster(clock=VirtualClock(now_ms / 1000))
    later.create_topic("in")
    later.produce("in", b"1", timestamp_ms=now_ms)
    assert later.log_end(Partition("in", 0)) == 1


@pytest.mark.parametrize("drop", [False, True], ids=["tombstone kept", "tombstone gone"])
def test_a_topic_whose_last_record_was_compacted_away_is_read_to_its_end(drop: bool) -> None:
    cluster = InMemoryCluster()
    for topic in ("rows", "in"):
        cluster.create_topic(topic)
    cluster.produce("rows", b"1", b"k", timestamp_ms=1000)
    cluster.produce("rows", None, b"k", timestamp_ms=2000)
    cluster.compact(Partition("rows", 0), drop_tombstones=drop)
    cluster.produce("in", b"7", b"k", timestamp_ms=3000)
    app = Application(consumer_group="joining", auto_offset_reset="earliest", loglevel=None)
    rows = app.table(app.topic("rows"))
    joined = app.dataframe(app.topic("in")).join_table(rows, how="left", on_merge=lambda left, _: left)
    joined.to_topic(app.topic("out"))
    cluster.run(app)
    assert [record.value for _, record in cluster.read("out")] == [b"7"]


def test_a_run_that_waits_for_a_killed_worker_s_transaction_longer_than_its_timeout_reads_its_messages(
    tmp_path: Path,
) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    feed(cluster, *range(20))
    process = Doomed(cluster.clock)
    process.at = "commit:before"
    with pytest.raises(Killed):
        build(state_dir=tmp_path).run_on(cluster.connect(process), load_settings(home=tmp_path), timeout=5.0)
    cluster.run(build(), quiet_s=0.5)  # another folder of state: the transaction is not its own, and has to end
    assert counts(cluster) == {(b"k%d" % key, "n"): 5 for key in range(4)}
