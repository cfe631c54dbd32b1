"""Stream time behind ``group_by``: bursts of messages, silent partitions, and tasks that read their own output."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.dataframe.windows import Count
from holdfast.infra.kafka.records import NotedOffset, Partition
from holdfast.processors.engine.runtime import loop
from holdfast.processors.engine.runtime.owner_commands.commands import Clear
from holdfast.processors.engine.runtime.reading import reading_order
from holdfast.processors.engine.runtime.reading.watermarks import IDLE_S, REPEAT_S
from holdfast.processors.engine.runtime.task.arrivals import NONE
from holdfast.processors.engine.runtime.task.noted_time import Noted, noted
from holdfast.processors.engine.state.time.stream_time import Remembered
from tests.mechanics.tiers import variants
from tests.window_lives import carry_out

#: The start of the cluster's clock, in milliseconds since 1970.
BEGIN = 1_700_000_000_000
HOUR = 3_600_000


def application(**options: Any) -> Application:
    return Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)


def windows(app: Application, step_ms: int, **closing: Any) -> Application:
    by_shop = app.dataframe(app.topic("sales")).group_by("shop")
    by_shop.tumbling_window(step_ms).agg(n=Count()).final(**closing).to_topic(app.topic("out"))
    return app


def sale(cluster: InMemoryCluster, partition: int, at: int, shop: str = "a") -> None:
    cluster.produce("sales", json.dumps({"shop": shop}).encode(), b"k", partition=partition, timestamp_ms=at)


def counted(cluster: InMemoryCluster) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for _, record in cluster.read("out"):
        result = json.loads(record.value or b"null")
        found[(record.key or b"").decode(), result["start"]] += result["n"]
    return found


@pytest.mark.parametrize("apart_s", [0.0, 0.05, 0.5])
def test_a_burst_that_comes_to_one_partition_before_the_others_makes_nothing_late(apart_s: float) -> None:
    """No message of a burst is late, although one partition gets its messages before the others.

    An idle processor gets 2,500 messages of eight hours, which one command sends in the order of time.
    """
    cluster = InMemoryCluster()
    cluster.create_topic("sales", partitions=3)
    times = [BEGIN - 9 * HOUR + number * 8 * HOUR // 2_500 for number in range(2_500)]

    def arrive(partition: int) -> None:
        for at in times[partition::3]:
            sale(cluster, partition, at)

    for partition in range(3):
        cluster.clock.call_later(5.0 + partition * apart_s, partial(arrive, partition))
    cluster.run(windows(application(), HOUR), quiet_s=10)
    assert counted(cluster) == Counter(("a", at // HOUR * HOUR) for at in times if at // HOUR < times[-1] // HOUR)


def test_a_silent_partition_delays_windows_by_the_idleness_and_not_for_ever() -> None:
    cluster, sent = InMemoryCluster(), dict[int, float]()
    cluster.create_topic("sales", partitions=2)
    app = windows(application(), 1_000)
    for second in range(60):
        cluster.clock.call_at(second, partial(sale, cluster, 0, BEGIN + second * 1000))

    def look() -> None:
        for _, record in cluster.read("out") if "out" in cluster._broker.topics else []:
            sent.setdefault(json.loads(record.value or b"")["start"], cluster.clock.time() * 1000)

    for tenth in range(700):
        cluster.clock.call_at(tenth / 10, look)
    cluster.run(app, quiet_s=15)
    # without the first five results, which were late because the worker was starting
    late = [at - (start + 1_000) for start, at in sent.items()][5:]
    assert len(late) > 50
    assert IDLE_S * 1000 <= max(late) <= 4 * IDLE_S * 1000


def test_a_silence_behind_group_by_ends_when_the_tasks_before_speak_no_more() -> None:
    """Windows with ``close_when_idle`` close behind ``group_by`` when all input is silent.

    The tasks before the repartition topic are idle, too. Their watermarks contain the length of the silence.
    """
    cluster = InMemoryCluster()
    cluster.create_topic("sales", partitions=2)
    for partition in range(2):
        sale(cluster, partition, BEGIN - HOUR + partition)
    closing = {"closing_strategy": "partition", "close_when_idle": timedelta(seconds=20)}
    cluster.run(windows(application(), 5_000, **closing), quiet_s=60)
    assert counted(cluster) == {("a", (BEGIN - HOUR) // 5_000 * 5_000): 2}


def test_stream_time_does_not_pass_a_source_that_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream time does not pass a source that still has unread messages.

    Between two polls, the buffer of this source is empty. A watermark says that the grouped side of the join is far
    ahead.
    """
    monkeypatch.setattr(loop, "RECORDS_PER_POLL", 1)
    monkeypatch.setattr(reading_order, "BUFFERED_MAX", 2)
    cluster, app = InMemoryCluster(), application()
    for topic in ("sales", "prices"):
        cluster.create_topic(topic, partitions=3)
    totals = app.dataframe(app.topic("sales")).tumbling_window(500, 100).agg(n=Count()).final("partition")
    totals.to_topic(app.topic("out"))
    totals.join_asof(app.dataframe(app.topic("prices")).group_by("shop"), on_merge="keep-left")
    for number in range(40):
        sale(cluster, 0, BEGIN - HOUR + number * 100)
    cluster.produce("prices", b'{"shop": "a"}', b"p", partition=0, timestamp_ms=BEGIN - HOUR + 60_000)
    cluster.run(app, quiet_s=10)
    assert counted(cluster) == {("k", BEGIN - HOUR + window * 500): 5 for window in range(8)}


def test_a_right_message_that_goes_before_older_ones_makes_them_not_late() -> None:
    """A message that is processed early as the right side of a join does not make older messages late.

    The flight at 9 s waits for the weather at 8.5 s. The next message in the repartition topic of the flights is the
    flight at 6.5 s, which the alert at 7 s needs. So the flight at 6.5 s must not be late.
    """
    cluster, app = InMemoryCluster(), application(commit_every=1)
    for topic, partitions in (("flights", 2), ("weather", 1), ("alerts", 1)):
        cluster.create_topic(topic, partitions=partitions)
    flights = app.dataframe(app.topic("flights")).group_by("shop", partitions=1)
    alerts = app.dataframe(app.topic("alerts")).join_asof(flights, "left", keep_left)
    alerts.group_by("shop", "alerted").tumbling_window(1_000).agg(n=Count()).final().to_topic(app.topic("out"))
    flights.join_asof(app.dataframe(app.topic("weather")), "left", keep_left).to_topic(app.topic("flown"))
    for topic, partition, second in (
        *[("flights", 0, 5.0), ("flights", 0, 9.0), ("flights", 1, 6.5), ("weather", 0, 8.5), ("alerts", 0, 7.0)],
        *[("flights", 0, 20.0), ("flights", 1, 20.0), ("weather", 0, 20.0), ("alerts", 0, 20.0)],
    ):
        at = BEGIN - HOUR + int(second * 1000)
        cluster.produce(topic, b'{"shop": "a"}', b"a", partition=partition, timestamp_ms=at)
    cluster.run(app, quiet_s=10)
    assert counted(cluster) == {("a", BEGIN - HOUR + 7_000): 1}


def keep_left(left: Any, right: Any) -> Any:
    return left


def employees(app: Application) -> Any:
    """A stream of employees that is grouped by their boss and joined with the table of the same stream."""
    people = app.dataframe(app.topic("people"))
    once = people.group_by("boss")
    joined = once.join_table(people.to_table(), "left", on_merge="keep-left")
    joined.tumbling_window(10_000).agg(n=Count()).final().to_topic(app.topic("out"))
    return once


def feed_people(cluster: InMemoryCluster, partitions: int) -> Counter[tuple[str, int]]:
    cluster.create_topic("people", partitions=partitions)
    fed: Counter[tuple[str, int]] = Counter()
    for number in range(60):
        boss, at = f"b{number % 4}", BEGIN - HOUR + number * 3_000
        value = json.dumps({"boss": boss, "g": f"g{number % 2}"}).encode()
        cluster.produce("people", value, f"e{number}".encode(), timestamp_ms=at)
        fed[boss, at // 10_000 * 10_000] += 1
    newest = BEGIN - HOUR + 59 * 3_000
    return Counter({window: n for window, n in fed.items() if window[1] + 10_000 <= newest})


@pytest.mark.parametrize("partitions", variants([3, 1]))
def test_a_task_that_reads_its_own_grouping_has_time(partitions: int) -> None:
    cluster, app = InMemoryCluster(), application()
    employees(app)
    fed = feed_people(cluster, partitions)
    cluster.run(app, quiet_s=10)
    assert counted(cluster) == fed


@pytest.mark.parametrize("partitions", variants([3, 1]))
def test_what_waits_behind_such_a_task_goes_on(partitions: int) -> None:
    cluster, app = InMemoryCluster(), application()
    once = employees(app)
    orders = app.dataframe(app.topic("orders")).group_by("g", "ordered")
    orders.join_asof(once.group_by("g", "by-g"), on_merge="keep-left").to_topic(app.topic("joined"))
    feed_people(cluster, partitions)
    cluster.create_topic("orders", partitions=partitions)
    for number in range(20):
        cluster.produce("orders", b'{"g": "g%d"}' % (number % 2), b"o", timestamp_ms=BEGIN - HOUR + 60_000 + number)
    cluster.run(app, quiet_s=10)
    assert len(cluster.read("joined")) == 20


@pytest.mark.parametrize("partitions", variants([3, 1]))
def test_a_task_that_groups_again_what_it_has_grouped_has_time(partitions: int) -> None:
    """Stream time advances in a task that reads its own watermarks in two inputs.

    The inputs are the employees by boss, and the groups that the task makes of them.
    """
    cluster, app = InMemoryCluster(), application()
    people = app.dataframe(app.topic("people"))
    once = people.group_by("boss", "by-boss").join_table(people.to_table(), "left", on_merge="keep-left")
    twice = once.group_by("g", "by-g")
    people.join_interval(twice, on_merge=keep_left, grace_ms=100, backward_ms=500).to_topic(app.topic("near"))
    twice.tumbling_window(10_000).agg(n=Count()).final().to_topic(app.topic("out"))
    orders = app.dataframe(app.topic("orders"))
    orders.join_asof(once.group_by("g", "again"), "left", keep_left).to_topic(app.topic("joined"))
    feed_people(cluster, partitions)
    cluster.create_topic("orders", partitions=partitions)
    for number in range(20):
        cluster.produce("orders", b"{}", b"o%d" % number, timestamp_ms=BEGIN - HOUR + 60_000 + number)
    cluster.run(app, quiet_s=10)
    assert len(cluster.read("joined")) == 20
    closed = [window for window in counted(cluster) if window[1] + 10_000 <= BEGIN - HOUR + 59 * 3_000]
    assert counted(cluster).total() >= 50
    assert len(closed) == len(counted(cluster))


@pytest.mark.parametrize("partitions", variants([3, 1]))
def test_a_window_of_the_source_in_such_a_task_closes_in_seconds(partitions: int) -> None:
    cluster, app = InMemoryCluster(), application()
    people = app.dataframe(app.topic("people"))
    people.group_by("boss").join_table(people.to_table(), "left", on_merge="keep-left").to_topic(app.topic("joined"))
    people.tumbling_window(10_000).agg(n=Count()).final(closing_strategy="partition").to_topic(app.topic("out"))
    feed_people(cluster, partitions)
    cluster.run(app, quiet_s=10)  # virtual seconds; an older version counted a dead worker's silence only after 90 s
    assert counted(cluster).total() >= 60 - 4 * partitions
    assert len(cluster.read("joined")) == 60


def remember(value: Any, state: Any) -> Any:
    state.set("last", value.get("n"))
    return value


def recall(value: Any, state: Any) -> Any:
    return {**value, "last": state.get("last")}


def by_row(stream: Any, grouped: Any) -> Any:
    return stream.join_table(grouped.to_table(), "left", on_merge="keep-left")


def by_state(stream: Any, grouped: Any) -> Any:
    grouped.update(remember, stateful=True, store="shared")
    return stream.apply(recall, stateful=True, store="shared")


def as_of(stream: Any, grouped: Any) -> Any:
    return stream.join_asof(grouped, "left", on_merge="keep-left")


@pytest.mark.parametrize("regrouped", [False, True], ids=["a-source", "behind-group_by"])
@pytest.mark.parametrize("partitions", variants([3, 1]))
@pytest.mark.parametrize("join", [by_state, by_row, as_of])
def test_what_waits_for_a_silent_grouping_goes_on(join: Any, partitions: int, *, regrouped: bool) -> None:
    """A message that waits for a silent partition of the joined stream is processed after a limited time.

    No newer message comes. The time is limited with and without state in the task.
    """
    cluster, app = InMemoryCluster(), application()
    prices = app.dataframe(app.topic("prices")).group_by("shop")
    stream = app.dataframe(app.topic("sales"))
    join(stream.group_by("shop", "sold") if regrouped else stream, prices).to_topic(app.topic("out"))
    for topic in ("prices", "sales"):
        cluster.create_topic(topic, partitions=partitions)
    value = json.dumps({"shop": "a", "n": 1}).encode()
    cluster.produce("prices", value, b"k", timestamp_ms=BEGIN - HOUR)
    cluster.produce("sales", value, b"a", timestamp_ms=BEGIN)
    cluster.run(app, quiet_s=10)
    assert len(cluster.read("out")) == 1


def owner(value: dict[str, str]) -> str:
    return f"owner of {value['shop']}"


def twice_grouped() -> Application:
    app = application()
    sales = app.dataframe(app.topic("sales")).update(remember, stateful=True, store="sold")
    by_owner = sales.group_by("shop", "by-shop").group_by(owner, "by-owner")
    by_owner.tumbling_window(1_000).agg(n=Count()).final().to_topic(app.topic("out"))
    return app


@pytest.mark.parametrize("command", [None, Clear(store="sold", all=True)], ids=["restart", "command"])
def test_heirs_of_tasks_whose_stores_keep_no_time_know_it(command: Clear | None) -> None:
    """A new worker learns the stream time of a silent task from the watermarks of the former worker.

    Each worker is stopped before its wait for the silent partition ends. The messages that come later are older. The
    second worker writes no watermarks itself.
    """
    cluster = InMemoryCluster()
    cluster.create_topic("sales", partitions=2)
    for second in (1, 2):
        sale(cluster, 1, BEGIN - HOUR + second * 1000)
    for seconds in (IDLE_S / 2, REPEAT_S / 2):
        app = twice_grouped()
        cluster.clock.call_later(seconds, app.stop)
        cluster.run(app)
    if command is not None:
        carry_out(cluster, twice_grouped(), command)
    sale(cluster, 0, BEGIN - HOUR)
    cluster.run(twice_grouped(), quiet_s=10)
    name = "owner of a"
    assert counted(cluster) == {(name, BEGIN - HOUR): 1, (name, BEGIN - HOUR + 1000): 1}


def test_a_command_that_moves_the_input_back_leaves_no_note() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("sales", partitions=1)
    sale(cluster, 0, BEGIN - HOUR)
    cluster.run(twice_grouped())

    def note() -> str:
        return getattr(cluster._broker.group("p").committed[Partition("sales", 0)], "note", "")

    assert f'"time_ms":{BEGIN - HOUR}' in note()
    carry_out(cluster, twice_grouped(), Clear(store="sold", all=True, positions={"sales": {0: 0}}))
    assert note() == ""


NOTE = '{"task":"a+b-0","time_ms":20,"ahead":[30]}'


def test_a_note_beside_the_offsets_of_all_inputs_is_the_time_of_the_task() -> None:
    assert noted("a+b-0", [NotedOffset(5, NOTE), NotedOffset(7, NOTE)]) == Noted(Remembered(20, (30,)), NONE)


@pytest.mark.parametrize(
    "committed",
    [
        pytest.param([NotedOffset(5, NOTE), 7], id="another-tool-moved-an-input"),
        pytest.param([NotedOffset(5, NOTE), None], id="a-new-input"),
        pytest.param([NotedOffset(5, NOTE.replace("20", "21")), NotedOffset(7, NOTE)], id="of-different-commits"),
        pytest.param(
            [NotedOffset(5, NOTE.replace("a+b", "a")), NotedOffset(7, NOTE.replace("a+b", "a"))], id="of-less"
        ),
        pytest.param([NotedOffset(5, "mine"), NotedOffset(7, "mine")], id="of-another-tool"),
        pytest.param([5, 7], id="none"),
    ],
)
def test_any_other_note_is_no_time(committed: list[int | None]) -> None:
    assert noted("a+b-0", committed).time is None


def test_a_run_leaves_nothing_that_words_bring() -> None:
    """A run in memory ends only after the last message has passed a join and three groupings.

    The watermarks that move this message on take longer than the silence after which a run in memory usually ends.
    """
    cluster, app = InMemoryCluster(), application()
    for topic in ("left", "right"):
        cluster.create_topic(topic, partitions=1)
    left = app.dataframe(app.topic("left")).group_by("g", "once", partitions=1).group_by("k", "twice", partitions=1)
    right = app.dataframe(app.topic("right")).group_by("k", "other", partitions=1)
    joined = left.join_asof(right, "left", on_merge="keep-left").group_by("g", "last", partitions=2)
    joined.tumbling_window(10_000).agg(n=Count()).final("partition").to_topic(app.topic("out"))
    for number, at in enumerate((BEGIN - HOUR, BEGIN - HOUR // 2)):
        value = json.dumps({"g": f"g{number}", "k": f"k{number}"}).encode()
        cluster.produce("left", value, b"q", timestamp_ms=at)
    cluster.run(app)
    assert [json.loads(record.value or b"")["n"] for _, record in cluster.read("out")] == [1]


@pytest.mark.parametrize("interval_s", [0.5, 5.0])
def test_a_run_waits_for_what_its_commit_sends_to_a_repartition_topic(interval_s: float) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in", partitions=2)
    app = Application("localhost:9092", consumer_group="p", auto_offset_reset="earliest", commit_interval=interval_s)
    once = app.dataframe(app.topic("in")).group_by("g", "once").group_by("k", "twice")
    once.to_topic(app.topic("out"))
    for number in range(5):
        value = json.dumps({"g": f"g{number}", "k": f"k{number}"}).encode()
        cluster.produce("in", value, b"q%d" % number, timestamp_ms=BEGIN - HOUR + number)
    cluster.run(app)
    assert len(cluster.read("out")) == 5


@pytest.mark.parametrize("fed", variants([1, 0]))
def test_windows_of_a_silent_task_close_though_one_of_its_groupings_is_empty(fed: int) -> None:
    cluster = InMemoryCluster()
    for topic in ("left", "right"):
        cluster.create_topic(topic, partitions=2)
    app = application()
    right = app.dataframe(app.topic("right")).group_by("g", "r")
    rows = app.dataframe(app.topic("left")).group_by("g", "l").join_asof(right, "left", keep_left)
    windows = rows.tumbling_window(10_000, 20_000).agg(n=Count())
    windows.final("partition", close_when_idle=20_000).to_topic(app.topic("out"))
    for number in range(3):
        value = json.dumps({"g": "g"}).encode()
        cluster.produce("left", value, b"q%d" % number, timestamp_ms=BEGIN - HOUR + number)
    for _ in range(fed):
        cluster.produce("right", b'{"g": "g"}', b"q", timestamp_ms=BEGIN - HOUR)
    cluster.run(app, quiet_s=120)
    assert counted(cluster) == {("g", BEGIN - HOUR): 3}


@pytest.mark.parametrize("cuts", variants([(tuple(range(30, 360, 30)),), ((100, 200, 300),), ((),)]))
def test_no_message_is_a_late_duplicate_because_another_partition_was_read_further(cuts: tuple[int, ...]) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in", partitions=2)
    kept = [number % 300 for number in range(360)]  # 60 messages are sent again, 300 s later

    def build() -> Application:
        app = application()
        grouped = app.dataframe(app.topic("in")).group_by("g", partitions=1)
        grouped.drop_duplicates("id", within=400_000).to_topic(app.topic("out"))
        return app

    for number, each in enumerate(kept):
        if number in cuts:
            cluster.run(build())
        value, at = json.dumps({"g": "g", "id": each}).encode(), BEGIN - HOUR + number * 1_000
        cluster.produce("in", value, b"q", partition=number // 30 % 2, timestamp_ms=at)
    cluster.run(build())
    found = [json.loads(record.value or b"")["id"] for _, record in cluster.read("out")]
    assert sorted(found) == list(range(300))


def test_messages_of_a_partition_that_was_read_later_are_no_late_duplicates() -> None:
    cluster, app = InMemoryCluster(), application()
    cluster.create_topic("in", partitions=2)
    grouped = app.dataframe(app.topic("in")).group_by("g", partitions=1)
    grouped.drop_duplicates("id", within=5_000).to_topic(app.topic("out"))
    for number in range(200):
        value, at = json.dumps({"g": "g", "id": number}).encode(), BEGIN - HOUR + number * 1_000
        cluster.produce("in", value, b"q", partition=number % 2, timestamp_ms=at)
    cluster.run(app)
    assert len(cluster.read("out")) == 200
