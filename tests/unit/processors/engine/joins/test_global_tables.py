"""Global tables on the in-memory cluster: loaded before the first message, updated, read by any key, refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, HoldfastError, InlineProcess, InMemoryCluster
from holdfast.infra.kafka.records import Batch
from holdfast.processors.application.arguments import ApplicationInvalid
from holdfast.processors.engine.joins.global_tables import GlobalTable, GlobalTableUnread, Rows
from holdfast.processors.engine.joins.merge import JoinInvalid
from holdfast.processors.engine.runtime import global_tables
from holdfast.processors.engine.runtime.global_tables import GlobalTables
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.testing.cluster import ClusterView
from holdfast.processors.testing.log import PartitionLog
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.simulation.disk import SimulatedDisk
from tests.window_lives import live


def application(**options: Any) -> Application:
    return Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **options)


def built(join: Callable[[Any, GlobalTable], Any], **options: Any) -> Application:
    app = application(**options)
    planes = app.global_table(app.topic("planes"))
    join(app.dataframe(app.topic("flights")), planes).to_topic(app.topic("out"))
    return app


def world(partitions: int = 3) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("flights", partitions=2)
    cluster.create_topic("planes", partitions=partitions, config={"cleanup.policy": "compact"})
    return cluster


def feed(cluster: InMemoryCluster, topic: str, key: bytes | None, value: Any) -> None:
    cluster.produce(topic, None if value is None else json.dumps(value).encode(), key)


def sent(cluster: InMemoryCluster) -> list[Any]:
    return sorted((json.loads(record.value or b"") for _, record in cluster.read("out")), key=repr)


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


@pytest.mark.parametrize(
    "on", ["plane", lambda value: value["plane"], lambda value: value["plane"] and value["plane"].encode()]
)
def test_a_field_or_a_function_says_whose_row_is_found(on: Any) -> None:
    cluster = world()
    for key, row in ((b"A", 0), (b"B", ""), (b"C", {}), (b"D", False), (b"E", 1), (b"E", None)):
        feed(cluster, "planes", key, row)
    for plane in ("A", "B", "C", "D", "E", "F", None):
        feed(cluster, "flights", b"k%d" % hash(plane), {"plane": plane})
    feed(cluster, "flights", b"k", None)
    cluster.run(built(lambda flights, planes: flights.join_table(planes, "left", pair, on=on)))
    rows = {"A": 0, "B": "", "C": {}, "D": False, "E": None, "F": None, None: None}
    expected = [[None, None], *([{"plane": plane}, row] for plane, row in rows.items())]
    assert sent(cluster) == sorted(expected, key=repr)


def test_an_inner_join_drops_what_has_no_row_and_takes_the_key_where_nothing_else_is_said() -> None:
    cluster = world()
    feed(cluster, "planes", b"A", {"seats": 180})
    feed(cluster, "flights", b"A", {"flight": 1})
    feed(cluster, "flights", b"B", {"flight": 2})
    feed(cluster, "flights", None, {"flight": 3})
    cluster.run(built(lambda flights, planes: flights.join_table(planes)))
    assert sent(cluster) == [{"flight": 1, "seats": 180}]


def test_a_function_reads_any_row() -> None:
    cluster = world()
    feed(cluster, "planes", b"A", {"seats": 180})
    feed(cluster, "flights", b"x", ["A", "B"])

    def seats(value: list[str], planes: GlobalTable) -> list[Any]:
        return [planes.get(each, {"seats": 0})["seats"] for each in value]

    cluster.run(built(lambda flights, planes: flights.apply(lambda value: seats(value, planes))))
    assert sent(cluster) == [[180, 0]]


def test_a_row_that_a_function_changes_stays_as_it_is() -> None:
    cluster = world()
    feed(cluster, "planes", b"A", {"seats": 180})
    for number in range(2):
        feed(cluster, "flights", b"A", number)

    def changed(value: int, planes: GlobalTable) -> Any:
        row = planes.get(b"A")
        row["seats"] += 1
        return row

    cluster.run(built(lambda flights, planes: flights.apply(lambda value: changed(value, planes))))
    assert sent(cluster) == [{"seats": 181}, {"seats": 181}]


def logged(capsys: pytest.CaptureFixture[str]) -> str:
    return "\n".join(line for line in capsys.readouterr().out.splitlines() if "can't be read" in line)


def test_a_row_that_can_not_be_read_is_told_when_it_is_loaded_and_named_by_the_message_that_asks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = world(partitions=1)
    for key, row in ((b"A", b"{}"), (b"B", b"{broken"), (b"C", b"{old"), (b"C", b"{}"), (b"D", b"{gone"), (b"D", None)):
        cluster.produce("planes", row, key)
    for key in (b"A", b"B", b"C", b"D"):
        feed(cluster, "flights", key, key.decode())
    app = built(lambda flights, planes: flights.join_table(planes, "left", pair), dead_letter_topic="dead")
    cluster.run(app)
    told = logged(capsys)
    assert "count=1" in told
    assert "planes[0] offset 1: " in told
    assert "offset 2" not in told
    assert "offset 4" not in told
    assert sent(cluster) == [["A", {}], ["C", {}], ["D", None]]
    ((_, letter),) = cluster.read("dead")
    said = {name: (value or b"").decode() for name, value in letter.headers or []}
    assert (letter.key, said["holdfast.error.type"]) == (b"B", "GlobalTableUnread")
    assert (
        "The row of key b'B' in the global table of topic planes can't be read (planes[0] offset 1: "
        in (said["holdfast.error"])
    )
    assert "Write the row to planes again" in said["holdfast.error.action"]
    # Apply the action that the error recommends.
    feed(cluster, "planes", b"B", 7)
    cluster.produce("flights", letter.value, letter.key)
    cluster.run(app)
    assert sent(cluster) == [["A", {}], ["B", 7], ["C", {}], ["D", None]]
    assert logged(capsys) == ""


def test_a_row_that_can_not_be_read_stops_the_worker_in_the_rows_name() -> None:
    cluster = world(partitions=1)
    cluster.produce("planes", b"{broken", b"B")
    feed(cluster, "flights", b"B", 1)
    with pytest.raises(ProcessingFailed, match=r"\(planes\[0\] offset 0: .*The message .* is not the cause"):
        cluster.run(built(lambda flights, planes: flights.join_table(planes, "left", pair)))


@pytest.mark.parametrize("step", variants([2, 1, 10_000], tested=1))
def test_all_partitions_are_there_before_the_first_message_and_after_a_restart(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_tables, "RECORDS_PER_STEP", step)
    cluster, join = world(partitions=5), lambda flights, planes: flights.join_table(planes, "left", pair, on="plane")
    for round_number in range(2):
        for number in range(40):
            feed(cluster, "planes", b"%d" % number, [round_number, number])
            feed(cluster, "flights", b"%d" % number, {"plane": str(number)})
        cluster.run(built(join))
    expected = [[{"plane": str(number)}, [each, number]] for each in range(2) for number in range(40)]
    assert sent(cluster) == sorted(expected, key=repr)


def seen(cluster: InMemoryCluster) -> ClusterView:
    return cluster.connect(InlineProcess(cluster.clock))


def followed(cluster: InMemoryCluster) -> tuple[GlobalTables, GlobalTable]:
    tables = GlobalTables(seen(cluster))
    app = application()
    planes = app.global_table(app.topic("planes"))
    tables.declare({"planes": planes})
    return tables, planes


def test_what_is_written_later_is_followed() -> None:
    cluster = world()
    tables, planes = followed(cluster)
    feed(cluster, "planes", b"A", 1)
    tables.load(lambda: True)
    with tables.in_use():
        assert [planes.get("A"), planes.get("B")] == [1, None]
        feed(cluster, "planes", b"A", None)
        feed(cluster, "planes", b"B", 2)
        feed(cluster, "planes", None, 3)
        tables.follow()
        assert [planes.get("A"), planes.get("B")] == [None, 2]
    rows = Rows()
    rows[b"B"] = b"2"
    size = sys.getsizeof(rows) + sys.getsizeof(b"B") + sys.getsizeof(b"2")
    assert tables.told() == {"planes": {"rows": 1, "bytes": size, "loading": False, "remaining": 0, "unreadable": 0}}


def test_a_row_that_can_not_be_read_and_comes_later_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = world(partitions=1)
    tables, planes = followed(cluster)
    feed(cluster, "planes", b"A", 1)
    tables.load(lambda: True)
    with tables.in_use():
        cluster.produce("planes", b"{broken", b"A")
        tables.follow()
        assert "planes[0] offset 1: " in logged(capsys)
        assert (tables.told()["planes"]["rows"], tables.told()["planes"]["unreadable"]) == (1, 1)
        with pytest.raises(GlobalTableUnread, match=r"planes\[0\] offset 1: ") as unread:
            planes.get("A", default=0)
        assert (unread.value.fields["row_partition"], unread.value.fields["row_offset"]) == (0, 1)
        cluster.produce("planes", None, b"A")
        tables.follow()
        assert planes.get("A", default=0) == 0
        feed(cluster, "planes", b"A", 2)
        tables.follow()
        assert (planes.get("A"), tables.told()["planes"]["unreadable"]) == (2, 0)
    assert logged(capsys) == ""


def test_memory_is_that_of_the_rows_that_are_there() -> None:
    cluster = world()
    tables, _ = followed(cluster)
    feed(cluster, "planes", b"A", "long" * 1_000)
    for number in range(200):
        feed(cluster, "planes", b"%d" % number, number)
        feed(cluster, "planes", b"%d" % number, number * 1_000)
        feed(cluster, "planes", b"%d" % number, None if number % 2 else number)
    tables.load(lambda: True)
    rows = {b"A": json.dumps("long" * 1_000).encode(), **{b"%d" % each: b"%d" % each for each in range(0, 200, 2)}}
    told = tables.told()["planes"]
    content = sum(sys.getsizeof(key) + sys.getsizeof(row) for key, row in rows.items())
    assert told["rows"] == 101
    # a dict that has shrunk still uses the memory of its largest size
    assert content + sys.getsizeof(rows) <= told["bytes"] <= content + 20_000


def test_partitions_that_are_added_are_read() -> None:
    cluster = world(partitions=1)
    tables, planes = followed(cluster)
    feed(cluster, "planes", b"A", 1)
    tables.load(lambda: True)
    topic_id = seen(cluster).topics().describe(["planes"])["planes"].topic_id
    cluster._broker.topics["planes"].logs.append(PartitionLog())
    cluster.produce("planes", b"2", b"B", partition=1)
    with tables.in_use():
        for wide in (1, 2):
            tables.compare({"planes": topic_id}, {"planes": wide})
            for _ in range(3):
                tables.follow()
            assert [planes.get("A"), planes.get("B")] == [1, None if wide == 1 else 2]
        # the description of a topic by a broker that does not know the new partition yet
        tables.compare({"planes": topic_id}, {"planes": 1})
        tables.follow()
        assert not tables.told()["planes"]["loading"]


def test_a_topic_that_was_truncated_or_made_anew_is_loaded_again_and_served_meanwhile() -> None:
    cluster = world(partitions=1)
    tables, planes = followed(cluster)
    for number in range(3):
        feed(cluster, "planes", b"%d" % number, number)
    tables.load(lambda: True)
    cluster.delete_topic("planes")
    cluster.create_topic("planes")
    feed(cluster, "planes", b"0", "new")
    with tables.in_use():
        tables.compare({"planes": None}, {})  # a broker may not know the new topic for a while
        tables.follow()
        assert planes.get("2") == 2
        tables.compare({"planes": seen(cluster).topics().describe(["planes"])["planes"].topic_id}, {"planes": 1})
        for _ in range(3):
            tables.follow()
        assert [planes.get("0"), planes.get("2")] == ["new", None]


def test_a_load_ends_when_the_worker_is_stopped() -> None:
    cluster = world()
    feed(cluster, "planes", b"A", 1)
    tables, planes = followed(cluster)
    tables.load(lambda: False)
    with tables.in_use():
        assert planes.get("A") is None
    assert tables.told()["planes"]["loading"]


def test_two_workers_on_one_thread_have_rows_of_their_own() -> None:
    worlds = [world(), world()]
    both = [followed(cluster) for cluster in worlds]
    for number, (cluster, (tables, _)) in enumerate(zip(worlds, both, strict=True)):
        feed(cluster, "planes", b"A", number)
        tables.load(lambda: True)
    planes = both[0][1]
    with both[0][0].in_use():
        with both[1][0].in_use():
            assert planes.get("A") == 1
        assert planes.get("A") == 0


def test_a_read_outside_of_a_worker_is_refused() -> None:
    app = application()
    with pytest.raises(GlobalTableUnread, match="outside of a worker"):
        app.global_table(app.topic("planes")).get("A")


@pytest.mark.parametrize(
    ("on", "value", "says"),
    [("plane", [1], "value of type list"), ("plane", {"plane": 5}, "A key of type int was looked up")],
)
def test_what_can_not_be_looked_up_goes_by_the_failure_policy(on: str, value: Any, says: str) -> None:
    cluster = world()
    feed(cluster, "flights", b"A", value)
    app = built(lambda flights, planes: flights.join_table(planes, on=on), dead_letter_topic="dead")
    cluster.run(app)
    (dead,) = [dict(record.headers or [])["holdfast.error"] or b"" for _, record in cluster.read("dead")]
    assert says.encode() in dead


@pytest.mark.parametrize(
    ("declare", "error", "says"),
    [
        (lambda app, flights, planes: flights.join_table(planes, on=5), JoinInvalid, "`on` is 5"),
        (lambda app, flights, planes: flights.join_table(planes, "outer"), JoinInvalid, "`how` is 'outer'"),
        (lambda app, flights, planes: flights.join_table(flights.to_table(), on="a"), JoinInvalid, "app.global_table"),
        (
            lambda app, flights, planes: app.global_table(app.topic("planes")),
            ApplicationInvalid,
            "already has",
        ),
        (
            lambda app, flights, planes: flights.join_table((other := application()).global_table(other.topic("t"))),
            JoinInvalid,
            "with the global table of topic t: they are of two applications",
        ),
    ],
)
def test_a_declaration_that_can_not_run_is_refused(declare: Any, error: type[Exception], says: str) -> None:
    app = application()
    planes = app.global_table(app.topic("planes"))
    with pytest.raises(error, match=says):
        declare(app, app.dataframe(app.topic("flights")), planes)


def test_a_missing_topic_is_created_compacted_or_refused() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("flights")
    app = built(lambda flights, planes: flights.join_table(planes), auto_create_topics=False)
    with pytest.raises(HoldfastError, match="global table planes is not there"):
        cluster.run(app)
    cluster.run(built(lambda flights, planes: flights.join_table(planes)))
    assert seen(cluster).topics().describe(["planes"])["planes"].config["cleanup.policy"] == "compact"


def test_it_is_read_by_no_task_and_written_by_nobody() -> None:
    topology = built(lambda flights, planes: flights.join_table(planes)).topology()
    assert [spec.name for spec in topology.inputs] == ["flights"]
    assert [spec.name for spec in topology.global_tables] == ["planes"]
    assert topology.written() == ["out"]
    assert not topology.stores
    assert not topology.prove


def test_another_field_is_another_version() -> None:
    def version(on: str) -> str:
        return built(lambda flights, planes: flights.join_table(planes, on=on)).topology().code_version

    assert version("a") != version("b")
    assert version("a") == version("a")


def check_rows(seed: int, folder: Path) -> None:
    """Change rows at random between runs. A flight must find the row that a plain dict has."""
    random, cluster = Random(seed), world(partitions=Random(seed).randint(1, 4))
    rows: dict[str, Any] = {}
    expected = []
    for _ in range(3):
        for _ in range(random.randint(0, 30)):
            key, row = random.choice("abcde"), random.choice([0, "", False, {}, [], 1, None])
            feed(cluster, "planes", key.encode(), row)
            rows[key] = row
        for plane in "abcdef":
            feed(cluster, "flights", b"%d" % random.randrange(9), {"plane": plane})
            expected.append([{"plane": plane}, rows.get(plane)])
        cluster.run(built(lambda flights, planes: flights.join_table(planes, "left", pair, on="plane")))
    assert repr(sent(cluster)) == repr(sorted(expected, key=repr))


@pytest.mark.parametrize("seed", variants(range(300), tested=8))
def test_a_flight_finds_what_plain_python_finds(seed: int, tmp_path: Path) -> None:
    check_rows(seed, tmp_path)


@pytest.mark.parametrize("seed", variants(range(300), tested=6))
def test_over_kills_each_flight_is_sent_once_and_state_is_right(seed: int, tmp_path: Path) -> None:
    random, cluster, disk = Random(seed), world(), SimulatedDisk()
    app = application(state_dir=tmp_path, commit_every=3)
    planes = app.global_table(app.topic("planes"))
    numbered = app.dataframe(app.topic("flights")).apply(
        lambda value, state: {**value, "nth": state.increment("n")}, stateful=True, store="flown"
    )
    numbered.join_table(planes, "left", pair, on="plane").to_topic(app.topic("out"))
    rows: dict[str, Any] = {}
    flown: dict[str, int] = {}
    expected = []
    for _ in range(3):
        for plane in random.choices("abc", k=5):
            rows[plane] = random.choice([0, False, {"seats": 1}, None])
            feed(cluster, "planes", plane.encode(), rows[plane])
        for plane in random.choices("abcd", k=random.randint(0, 12)):
            feed(cluster, "flights", plane.encode(), {"plane": plane})
            flown[plane] = flown.get(plane, 0) + 1
            expected.append([{"plane": plane, "nth": flown[plane]}, rows.get(plane)])
        for _ in range(2):
            live(cluster, app, disk if random.random() < 0.5 else SimulatedDisk(), random)
        live(cluster, app, disk, None)
    assert repr(sent(cluster)) == repr(sorted(expected, key=repr))
    assert cluster.state(app, "flown") == {(plane.encode(), "n"): count for plane, count in flown.items()}


def _falsy_row_is_none(patch: pytest.MonkeyPatch) -> None:
    former = GlobalTable.get
    patch.setattr(GlobalTable, "get", lambda self, key, default=None: former(self, key) or default)


def _deleted_row_stays(patch: pytest.MonkeyPatch) -> None:
    former = global_tables._Load.take

    def take(self: Any, batch: Any) -> None:
        kept = [index for index, value in enumerate(batch.values) if value is not None]
        former(self, Batch(batch.partition, *([each[index] for index in kept] for each in (batch.keys, batch.values))))

    patch.setattr(global_tables._Load, "take", take)


def _not_loaded_before_the_first_message(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(global_tables._Load, "remaining", property(lambda self: 0))
    patch.setattr(GlobalTables, "follow", lambda self: None)


def _one_partition_is_enough(patch: pytest.MonkeyPatch) -> None:
    former = global_tables._Load.take

    def take(self: Any, batch: Any) -> None:
        if batch.partition.number == 0:
            former(self, batch)

    patch.setattr(global_tables._Load, "take", take)


@pytest.mark.parametrize(
    "bug", [_falsy_row_is_none, _deleted_row_stays, _not_loaded_before_the_first_message, _one_partition_is_enough]
)
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    assert is_found(bug, check_rows, tmp_path)
