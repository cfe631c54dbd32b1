"""``group_by``, one case per test: keys, partitions, nesting, joins behind it, and refused declarations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, HoldfastError, InMemoryCluster, load_settings
from holdfast.dataframe.windows import Count, Sum
from holdfast.processors.application.name_conflicts import name_conflicts
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.runtime.purge import PURGE_EVERY_S
from holdfast.processors.engine.runtime.reading.watermarks import IDLE_S, REPEAT_S
from holdfast.processors.engine.steps.topic import Topic
from holdfast.processors.engine.topology_drawing import drawing_of
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.process import InlineProcess
from tests.mechanics.tiers import variants

BEGIN = 600_000_000
MINUTE = 60_000
WINDOW = 10 * MINUTE
FLIGHTS = [
    {"carrier": carrier, "origin": origin, "delay": delay}
    for delay, (carrier, origin) in enumerate([("LH", "FRA"), ("BA", "LHR"), ("LH", "MUC"), ("AF", "CDG")] * 10)
]


def application(**options: Any) -> Application:
    return Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)


def world(partitions: int = 3) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("flights", partitions=partitions)
    for number, flight in enumerate(FLIGHTS):
        cluster.produce("flights", json.dumps(flight).encode(), f"plane-{number % 7}".encode(), timestamp_ms=number)
    return cluster


def newest(cluster: InMemoryCluster, topic: str = "out") -> dict[str, Any]:
    return {(record.key or b"").decode(): json.loads(record.value or b"null") for _, record in cluster.read(topic)}


def test_messages_are_counted_by_another_key() -> None:
    app, cluster = application(), world()
    by_carrier = app.dataframe(app.topic("flights")).group_by("carrier")
    by_carrier.aggregate(n=Count(), delay=Sum("delay")).to_topic(app.topic("out"))
    cluster.run(app)
    expected = {
        carrier: {
            "n": sum(flight["carrier"] == carrier for flight in FLIGHTS),
            "delay": sum(flight["delay"] for flight in FLIGHTS if flight["carrier"] == carrier),
        }
        for carrier in ("LH", "BA", "AF")
    }
    assert newest(cluster) == expected
    assert len(cluster.read("out")) == len(FLIGHTS)


def test_a_topic_that_another_processor_groups_by_is_refused_until_the_name_is_another_one() -> None:
    """Two processors must not use the same repartition topic.

    Processor `p` with a grouping named `b-c`, and processor `p-b` with a grouping named `c`, would do so.
    """
    cluster = world()

    def grouped(processor: str, name: str) -> Application:
        app = Application("in-memory", consumer_group=processor, auto_offset_reset="earliest", loglevel=None)
        stream = app.dataframe(app.topic("flights")).group_by(lambda flight: flight["carrier"], name=name)
        stream.aggregate(n=Count()).to_topic(app.topic(f"out-{processor}"))
        return app

    cluster.run(grouped("p", "b-c"))
    with pytest.raises(
        HoldfastError, match="also the topic of a `group_by` of processor p, which has read it"
    ) as refused:
        cluster.run(grouped("p-b", "c"))
    assert "Give the `group_by` another `name`." in str(refused.value)
    cluster.run(grouped("p-b", "carrier"))
    cluster.run(grouped("p", "b-c"))
    counts = {carrier: {"n": sum(flight["carrier"] == carrier for flight in FLIGHTS)} for carrier in ("LH", "BA", "AF")}
    assert newest(cluster, "out-p") == newest(cluster, "out-p-b") == counts


def test_groupings_of_other_widths_are_joined_with_the_partitions_that_the_error_names() -> None:
    cluster = world(3)
    cluster.create_topic("carriers", partitions=2)
    cluster.produce("carriers", json.dumps({"carrier": "LH", "name": "Lufthansa"}).encode(), b"1", timestamp_ms=0)

    def joined(partitions: int, flown: int) -> Application:
        app = application()
        names = app.dataframe(app.topic("carriers")).group_by("carrier", partitions=partitions)
        flights = app.dataframe(app.topic("flights")).group_by("carrier", partitions=flown, name="flown")
        flights.join_asof(names, on_merge="keep-left").to_topic(app.topic("out"))
        return app

    with pytest.raises(HoldfastError, match="different partition counts") as refused:
        cluster.run(joined(2, 3))
    assert "Write `partitions=3` in each `group_by`" in str(refused.value)
    cluster.run(joined(3, 3))
    assert {value["name"] for value in newest(cluster).values()} == {"Lufthansa"}


def windows_by_carrier(**options: Any) -> Application:
    app = application(**options)
    by_carrier = app.dataframe(app.topic("flights")).group_by("carrier")
    by_carrier.tumbling_window(WINDOW).agg(n=Count()).final().to_topic(app.topic("out"))
    return app


def closed(cluster: InMemoryCluster) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for _, record in cluster.read("out"):
        result = json.loads(record.value or b"null")
        found[(record.key or b"").decode(), result["start"]] += result["n"]
    return found


def hours(
    cluster: InMemoryCluster, partitions: Sequence[int], *, hours: int = 2, first: int = 0
) -> Counter[tuple[str, int]]:
    """Send one message a minute to each partition. Returns how many messages each ten-minute window has."""
    fed: Counter[tuple[str, int]] = Counter()
    for partition in partitions:
        for minute in range(first * 60, (first + hours) * 60):
            carrier = ("LH", "BA", "AF")[(minute + partition) % 3]
            value = json.dumps({"carrier": carrier}).encode()
            cluster.produce("flights", value, b"plane", partition=partition, timestamp_ms=BEGIN + minute * MINUTE)
            fed[carrier, (BEGIN + minute * MINUTE) // WINDOW * WINDOW] += 1
    return fed


def is_closed(window: tuple[str, int], hours: int = 2) -> bool:
    """Whether the newest message that `hours` sent (in this number of hours) has passed the end of the window."""
    return window[1] + WINDOW <= BEGIN + (hours * 60 - 1) * MINUTE


@pytest.mark.parametrize("stop_after", [0, 17, 100, 150])
def test_a_partition_that_is_an_hour_behind_makes_no_message_late(stop_after: int) -> None:
    cluster = InMemoryCluster(clock=VirtualClock(1e9))
    cluster.create_topic("flights", partitions=2)
    fed = hours(cluster, [0])
    if stop_after:
        cluster.run(windows_by_carrier(commit_every=5), count=stop_after)
    fed += hours(cluster, [1])
    cluster.run(windows_by_carrier(commit_every=7))
    assert closed(cluster) == {window: n for window, n in fed.items() if is_closed(window)}


@pytest.mark.parametrize("partitions", variants([3, 1]))
def test_what_tasks_told_before_a_restart_counts_in_the_order_of_the_backlog(partitions: int) -> None:
    """The order of a backlog behind ``group_by`` respects watermarks that tasks wrote before a restart.

    The topic already contains newer watermarks, which are not read yet.
    """
    cluster = InMemoryCluster(clock=VirtualClock(1e9))
    cluster.create_topic("flights", partitions=2)

    def windows(seconds: float = 0.0) -> Application:
        """Windows behind the repartition topic. The processing of each message takes this many seconds."""
        app = application(commit_every=5)
        by_carrier = app.dataframe(app.topic("flights")).group_by("carrier", partitions=partitions)
        takes_long = by_carrier.update(lambda _: cluster.clock.advance_to(cluster.clock.monotonic() + seconds))
        takes_long.tumbling_window(WINDOW).agg(n=Count()).final().to_topic(app.topic("out"))
        return app

    fed = hours(cluster, [0, 1])
    cluster.run(windows())  # both writers of the repartition topic have written a watermark at their input's end
    fed += hours(cluster, [1], first=2)
    cluster.run(windows(), count=120)  # the task of source partition 1 is ahead of the readers of the repartition topic
    fed += hours(cluster, [0], first=2)
    cluster.run(windows(1.5))
    assert closed(cluster) == {window: n for window, n in fed.items() if is_closed(window, 4)}


def test_commit_every_counts_messages_and_no_watermarks(tmp_path: Path) -> None:
    """Watermarks do not count for ``commit_every``.

    The task that groups commits ten times. Each commit writes a watermark to both partitions of the repartition topic.
    """

    class Counting(InlineProcess):
        commits = 0

        def point(self, name: str) -> None:
            self.commits += name == "commit:after"

    cluster = InMemoryCluster(clock=VirtualClock(1e9))
    cluster.create_topic("flights", partitions=2)
    fed = hours(cluster, [0, 1], hours=1)
    process = Counting(cluster.clock)
    windows_by_carrier(commit_every=12).run_on(cluster.connect(process), load_settings(home=tmp_path), timeout=3.0)
    assert closed(cluster) == {window: n for window, n in fed.items() if is_closed(window, 1)}
    # each message counts twice: when it is written to the repartition topic, and when it is read from there
    messages = 2 * sum(fed.values())
    silent_s = 3.0 + 3 * IDLE_S  # the timeout of the run, plus the time until all windows are closed
    assert messages // 12 <= process.commits <= messages // 12 + 8 + silent_s / REPEAT_S


def totals(**options: Any) -> Application:
    app = application(**options)
    flights = app.dataframe(app.topic("flights"))
    seen = flights.update(lambda value, state: state.increment("seen"), stateful=True, store="planes")
    seen.group_by("carrier").aggregate(n=Count()).to_topic(app.topic("out"))
    return app


def counted() -> dict[str, Any]:
    return {carrier: {"n": sum(flight["carrier"] == carrier for flight in FLIGHTS)} for carrier in ("LH", "BA", "AF")}


@pytest.mark.parametrize("stop_after", variants([13, 0]))
def test_a_rewind_counts_nothing_twice(stop_after: int) -> None:
    """The state is cleared and the input is read again while the repartition topic still has unprocessed messages.

    Each message must still count once.
    """
    app, cluster = totals(commit_every=4), world()
    cluster.run(app, count=stop_after)
    cluster.clear_state(totals(), rewind="earliest")
    before = len(cluster.read("out"))
    cluster.run(totals())
    assert newest(cluster) == counted()
    assert len(cluster.read("out")) - before == len(FLIGHTS)


class Killed(BaseException):
    """Raised in place of a kill. The simulated process ends here."""


class Dying(InlineProcess):
    """A process that is killed at the named point, after it has passed this point ``after`` times.

    The killed process does not leave its consumer group.
    """

    def __init__(self, clock: VirtualClock, at: str, after: int) -> None:
        super().__init__(clock)
        self._at, self._left = at, after

    def point(self, name: str) -> None:
        self._left -= name == self._at
        if self.frozen or self._left < 0:
            self.frozen = True
            raise Killed


@pytest.mark.parametrize("use_changelog_topics", [False, True])
def test_a_kill_between_messages_and_offsets_groups_nothing_twice_at_least_once(
    use_changelog_topics: bool, tmp_path: Path
) -> None:
    """At-least-once: a kill between the repartition messages and the offsets must not repeat messages.

    Even without changelogs, the repartition topic and the offsets are written in one transaction.
    """

    def build() -> Application:
        app = application(processing_guarantee="at-least-once", use_changelog_topics=use_changelog_topics)
        app.dataframe(app.topic("flights")).group_by("carrier").aggregate(n=Count()).to_topic(app.topic("out"))
        return app

    cluster, settings = world(), load_settings(home=tmp_path)
    dying = Dying(cluster.clock, "flush:after", after=0)
    with pytest.raises(Killed):
        build().run_on(cluster.connect(dying), settings, timeout=5.0)
    assert [record for _, record in cluster.read("p-carrier-repartition", committed=False)], "messages were sent"
    next_one = InlineProcess(cluster.clock)
    next_one.sleep(60.0)
    build().run_on(cluster.connect(next_one), settings, timeout=5.0)
    assert newest(cluster) == counted()


def test_timers_before_a_group_without_changelogs_are_refused() -> None:
    def build(*, use_changelog_topics: bool) -> Application:
        app = application(processing_guarantee="at-least-once", use_changelog_topics=use_changelog_topics)
        app.store("seen", ttl=1_000)
        flights = app.dataframe(app.topic("flights"))
        flights = flights.apply(lambda value, state: value, stateful=True, store="seen")
        flights.group_by("carrier").aggregate(n=Count()).to_topic(app.topic("out"))
        return app

    with pytest.raises(HoldfastError, match=r"'seen' has .*, and messages of its task go to p-carrier-repartition"):
        build(use_changelog_topics=False).topology()
    cluster = world()
    cluster.run(build(use_changelog_topics=True))  # change the declaration as the error recommends
    assert newest(cluster) == counted()


def test_what_is_processed_is_deleted_from_the_repartition_topic_and_nothing_else() -> None:
    app, cluster = totals(), world()
    cluster.run(app, quiet_s=PURGE_EVERY_S + 5)
    topics = cluster.connect(InlineProcess(cluster.clock)).topics()
    assert sum(topics.start_offsets("p-carrier-repartition").values()) >= len(FLIGHTS)
    cluster.produce("flights", b'{"carrier": "LH"}', b"plane", timestamp_ms=5)
    cluster.run(app)
    assert newest(cluster)["LH"] == {"n": counted()["LH"]["n"] + 1}


def test_groups_may_be_nested() -> None:
    app, cluster = application(), world()
    by_carrier = app.dataframe(app.topic("flights")).group_by("carrier")
    numbered = by_carrier.apply(
        lambda value, state: {**value, "number": state.increment("n")}, stateful=True, store="numbers"
    )
    numbered.group_by(lambda value: value["origin"], name="by-origin").aggregate(n=Count(), top=Sum("number")).to_topic(
        app.topic("out")
    )
    cluster.run(app)
    carriers: Counter[str] = Counter()
    for flight in FLIGHTS:
        carriers[flight["carrier"]] += 1
    assert {origin: each["n"] for origin, each in newest(cluster).items()} == Counter(f["origin"] for f in FLIGHTS)
    sums = sum(each["top"] for each in newest(cluster).values())
    assert sums == sum(n * (n + 1) // 2 for n in carriers.values())
    names = [(sub.name, sub.stores) for sub in app.topology().subtopologies]
    assert names == [
        ("flights", ()),
        ("p-carrier-repartition", ("numbers",)),
        ("p-by-origin-repartition", ("flights-by-carrier-by-by-origin-aggregate",)),
    ]
    assert [sub.name for sub in app.topology().chains()[0]] == [name for name, _ in names]


def test_a_message_without_a_key_goes_by_the_failure_policy() -> None:
    app, cluster = application(dead_letter_topic="dead"), world()
    for value in (b"{}", b'{"carrier": null}', b"null", b"7"):
        cluster.produce("flights", value, b"plane", timestamp_ms=1)
    app.dataframe(app.topic("flights")).group_by("carrier").aggregate(n=Count()).to_topic(app.topic("out"))
    cluster.run(app)
    assert newest(cluster) == counted()
    assert len(cluster.read("dead")) == 4
    _, record = cluster.read("dead")[0]
    assert "group_by 'carrier' gives no key" in dict(record.headers or ())["holdfast.error"].decode()


def test_a_joined_table_has_the_width_of_its_topic() -> None:
    app, cluster = application(), world(partitions=2)
    cluster.create_topic("airlines", partitions=5)
    for carrier in ("LH", "BA", "AF"):
        cluster.produce("airlines", json.dumps({"name": carrier * 2}).encode(), carrier.encode(), timestamp_ms=1)
    airlines = app.table(app.topic("airlines"))
    by_carrier = app.dataframe(app.topic("flights")).group_by("carrier")
    by_carrier.join_table(airlines).to_topic(app.topic("out"))
    cluster.run(app)
    assert {carrier: each["name"] for carrier, each in newest(cluster).items()} == {
        "LH": "LHLH",
        "BA": "BABA",
        "AF": "AFAF",
    }
    assert len(cluster.read("out")) == len(FLIGHTS)


def test_a_grouping_is_one_of_the_version() -> None:
    def version(key: Any, name: str | None = None) -> str:
        app = application()
        app.dataframe(app.topic("flights")).group_by(key, name).aggregate(n=Count())
        return app.topology().code_version

    versions = {version("carrier"), version("origin"), version("carrier", "c"), version(lambda value: 1, "carrier")}
    assert len(versions) == 4


def test_a_group_by_of_the_key_that_messages_have_writes_no_topic() -> None:
    app = application()
    grouped = app.dataframe(app.topic("flights")).group_by("carrier")
    assert grouped.group_by("carrier") is grouped
    grouped.apply(lambda value: {**value, "carrier": "all"}).group_by("carrier", name="changed")
    assert [spec.name for spec in app.topology().repartitions] == ["carrier", "changed"]


def test_a_key_that_can_not_be_written_names_the_argument_that_writes_it() -> None:
    app, cluster = application(), world()
    app.dataframe(app.topic("flights")).group_by(lambda value: [value["carrier"]], name="list")
    with pytest.raises(HoldfastError, match="Set a `key_serializer` in `group_by`"):
        cluster.run(app)


@pytest.mark.parametrize("other", ["output", "global table"])
def test_the_topic_of_a_group_by_is_used_for_nothing_else(other: str) -> None:
    app = application()
    flights = app.dataframe(app.topic("flights"))
    flights.group_by("carrier").aggregate(n=Count())
    if other == "output":
        flights.to_topic(app.topic("p-carrier-repartition"))
    else:
        app.global_table(app.topic("p-carrier-repartition"))
    with pytest.raises(HoldfastError, match="it is the topic of a `group_by`"):
        app.topology()


def test_two_processors_have_no_repartition_topic_together() -> None:
    one, other = Application(consumer_group="g"), Application(consumer_group="g-b")
    one.dataframe(one.topic("flights")).group_by("x", name="b-c").aggregate(n=Count())
    other.dataframe(other.topic("flights")).group_by("x", name="c").aggregate(n=Count())
    [conflict, *_] = name_conflicts(one.topology(), [other.topology()])
    assert "have one repartition topic, g-b-c-repartition" in conflict.sentence


async def waits(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda sdf: sdf.group_by(lambda value: 1), "has no name"),
        (lambda sdf: sdf.group_by(lambda value, state: 1, name="x"), "can't be called with"),
        (lambda sdf: sdf.group_by("a", name=5), "5"),
        (lambda sdf: sdf.group_by("a", name=""), "can't be used in Kafka"),
        (lambda sdf: sdf.group_by(waits, name="x"), "is async"),
        (lambda sdf: sdf.group_by(5), "expected a field's name or a function"),
        (lambda sdf: sdf.group_by("a", partitions=0), "expected a whole number from 1"),
        (lambda sdf: sdf.group_by("a b"), "can't be used in Kafka"),
        (lambda sdf: (sdf.group_by("a"), sdf.group_by("a")), "is used already"),
        (
            lambda sdf: sdf.tumbling_window(10).count().final().group_by("n").tumbling_window(5).count().final(),
            "behind",
        ),
    ],
)
def test_what_can_not_run_is_refused(declare: Any, says: str) -> None:
    app = application()
    with pytest.raises(HoldfastError, match=says):
        declare(app.dataframe(app.topic("flights")))


def test_a_stream_without_an_application_has_no_groups() -> None:
    with pytest.raises(HoldfastError, match="needs a stream of an application"):
        StreamingDataFrame(Topic("flights")).group_by("carrier")


def test_a_drawing_shows_what_is_read_and_kept_from_the_sources_down() -> None:
    app = totals(use_changelog_topics=False, processing_guarantee="at-least-once")
    assert drawing_of(app.topology(), {"flights": 3, "p-carrier-repartition": 1}).splitlines() == [
        "reads flights [3 partitions]",
        "  tasks   flights-0 .. 2",
        "  stores  planes",
        "  │ group_by carrier",
        "  ▼",
        "  p-carrier-repartition",
        "reads p-carrier-repartition [1 partition] (repartition topic)",
        "  tasks   p-carrier-repartition-0",
        "  stores  flights-by-carrier-aggregate",
        "",
        "writes to out",
    ]
    assert "  tasks   one for each partition" in drawing_of(app.topology())
