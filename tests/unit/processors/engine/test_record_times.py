"""An output topic does not accept the timestamp of a message. Only this message fails, by the failure policy.

The failure is found and handled within one transaction.
"""

from typing import Any

import pytest
import structlog

from holdfast import Application, Count
from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.processors.engine.record_times import AFTER_KEY, BEFORE_KEY, RecordTimes, time_limits
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.testing import InMemoryCluster
from holdfast.processors.testing.clock import VirtualClock

HOUR_MS = 3_600_000


def count(value: Any, state: Any) -> int:
    state.set("n", state.get("n", 0) + 1)
    return int(state.get("n"))


def build(*, columns: bool = False, **options: Any) -> Application:
    app = Application(consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)
    stream = app.dataframe(app.topic("in"))
    made = (
        stream.aggregate(n=Count(), store="counts") if columns else stream.apply(count, stateful=True, store="counts")
    )
    made.to_topic(app.topic("out"))
    return app


def fed(*ahead_ms: int, copies: int = 1, **config: str) -> tuple[InMemoryCluster, list[int]]:
    cluster = InMemoryCluster()
    cluster.create_topic("in", config={AFTER_KEY: str(2**63 - 1)})
    cluster.create_topic("out", config={name.replace("_", "."): value for name, value in config.items()})
    now_ms = int(cluster.clock.time() * 1000)
    times = [now_ms + each for _ in range(copies) for each in ahead_ms]
    for time_ms in times:
        cluster.produce("in", b"{}", b"k", timestamp_ms=time_ms)
    return cluster, times


@pytest.mark.parametrize("columns", [False, True])
def test_a_message_dated_two_hours_ahead_becomes_a_dead_letter_with_a_time_that_kafka_takes(columns: bool) -> None:
    cluster, times = fed(0, 2 * HOUR_MS, 0, copies=60 if columns else 1)
    cluster.run(build(columns=columns, dead_letter_topic="dead"))
    good = [time_ms for time_ms in times if time_ms == times[0]]
    assert [record.timestamp_ms for _, record in cluster.read("out")] == good
    letters = [record for _, record in cluster.read("dead")]
    assert len(letters) == len(times) - len(good)
    for letter in letters:
        headers = dict(letter.headers or [])
        assert headers["holdfast.error.type"] == b"RecordTimeRefused"
        assert headers["holdfast.timestamp"] == b"%d" % times[1]
        assert letter.timestamp_ms < times[1]
    assert b"topic out takes records up to 3,600 s ahead" in dict(letters[0].headers or [])["holdfast.error"]
    if not columns:
        assert cluster.state(build(), "counts") == {(b"k", "n"): len(good)}


def test_without_a_policy_it_stops_at_the_message_with_all_before_it_committed() -> None:
    cluster, _ = fed(0, 2 * HOUR_MS, 0)
    with pytest.raises(ProcessingFailed, match=r"in\[0\] offset 1 .*7,200 s ahead of this worker's clock") as stopped:
        cluster.run(build())
    assert "(`message.timestamp.after.max.ms`)" in stopped.value.message
    assert cluster.committed_offsets("p") == {Partition("in", 0): 1}
    assert cluster.state(build(), "counts") == {(b"k", "n"): 1}


def test_it_can_be_skipped() -> None:
    cluster, _ = fed(0, 2 * HOUR_MS, 0)
    cluster.run(build(on_processing_error=lambda error, message, log: True))
    assert [record.value for _, record in cluster.read("out")] == [b"1", b"2"]


def test_a_message_from_1970_is_refused_where_the_topic_limits_the_past() -> None:
    cluster, _ = fed(0, -HOUR_MS, message_timestamp_before_max_ms="60000")
    with pytest.raises(ProcessingFailed, match=r"offset 1 .*behind this worker's clock.*up to 60 s behind"):
        cluster.run(build())


def test_a_topic_that_stamps_records_itself_takes_all_times() -> None:
    cluster, _ = fed(0, 99 * HOUR_MS, -99 * HOUR_MS, message_timestamp_type="LogAppendTime")
    cluster.run(build())
    assert len(list(cluster.read("out"))) == 3


def test_a_broker_whose_clock_is_behind_refuses_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = fed(0, HOUR_MS - 2_000, 0)
    takes = cluster._broker.takes_time
    monkeypatch.setattr(
        cluster._broker, "takes_time", lambda topic, time_ms: takes(topic, time_ms and time_ms + 60_000)
    )
    cluster.run(build(dead_letter_topic="dead"))
    assert [record.value for _, record in cluster.read("out")] == [b"1", b"2"]
    assert len(list(cluster.read("dead"))) == 1


def with_brokers_ahead(monkeypatch: pytest.MonkeyPatch, cluster: InMemoryCluster, ahead_ms: int) -> None:
    """Set the brokers' clock ahead of the worker's clock."""
    takes = cluster._broker.takes_time
    monkeypatch.setattr(
        cluster._broker, "takes_time", lambda topic, time_ms: takes(topic, time_ms and time_ms - ahead_ms)
    )


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
def test_a_worker_whose_clock_is_a_month_behind_processes_all_the_same(
    monkeypatch: pytest.MonkeyPatch, columns: bool, stamp: str
) -> None:
    """A worker whose clock is a month behind processes its messages.

    It learns the brokers' time from its inputs.
    """
    month_ms = 30 * 24 * HOUR_MS
    cluster = InMemoryCluster()
    cluster.create_topic("in", config={"message.timestamp.type": stamp})
    with_brokers_ahead(monkeypatch, cluster, month_ms)
    now_ms = int(cluster.clock.time() * 1000) + month_ms
    times = [now_ms + each * HOUR_MS // 60 for each in (-3, 0, 59, 10)] * 20
    for time_ms in times:
        cluster.produce("in", b"{}", b"k", timestamp_ms=time_ms)
    cluster.run(build(columns=columns))
    assert [record.timestamp_ms for _, record in cluster.read("out")] == times
    assert cluster.committed_offsets("p") == {Partition("in", 0): len(times)}


def test_a_step_sees_a_message_as_it_came_also_when_it_runs_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    with_brokers_ahead(monkeypatch, cluster, 24 * HOUR_MS)
    for _ in range(3):
        cluster.produce("in", b'{"n": 1}', b"k", timestamp_ms=int(cluster.clock.time() * 1000) + 24 * HOUR_MS)
    app = Application(consumer_group="p", auto_offset_reset="earliest", loglevel=None)
    stream = app.dataframe(app.topic("in")).update(lambda value: value.update(n=value["n"] + 1))
    stream.update(count, stateful=True, store="counts").to_topic(app.topic("out"))
    cluster.run(app)
    assert [record.value for _, record in cluster.read("out")] == [b'{"n":2}'] * 3
    assert cluster.state(app, "counts") == {(b"k", "n"): 3}


def test_a_message_that_can_not_be_read_the_second_time_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is processed twice, and the messages behind it are read from Kafka again. None of them may be skipped.

    By the second read, the schema registry may be unreachable. Here a message cannot be decoded the second time.
    """
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    with_brokers_ahead(monkeypatch, cluster, 24 * HOUR_MS)
    for number in range(5):
        cluster.produce("in", b"%d" % number, b"k", timestamp_ms=int(cluster.clock.time() * 1000) + 24 * HOUR_MS)
    reads: list[bytes] = []

    def read(raw: bytes) -> int:
        reads.append(raw)
        if raw == b"3" and reads.count(raw) > 1:
            raise ValueError("the registry is away")
        return int(raw)

    app = Application(consumer_group="p", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead")
    stream = app.dataframe(app.topic("in", value_deserializer=read)).update(count, stateful=True, store="counts")
    stream.to_topic(app.topic("out"))
    cluster.run(app)
    assert [record.value for _, record in cluster.read("out")] == [b"0", b"1", b"2", b"4"]
    assert [record.value for _, record in cluster.read("dead")] == [b"3"]
    assert cluster.state(app, "counts") == {(b"k", "n"): 4}


@pytest.mark.parametrize("columns", [False, True])
def test_a_backlog_is_not_processed_twice_message_by_message(monkeypatch: pytest.MonkeyPatch, columns: bool) -> None:
    """A backlog is processed without a second attempt for each message, although the worker's clock is a day behind.

    Each message is newer than the message before, so each message reveals a later time of the brokers' clock. The
    engine must not process a message again for each of these times.
    """
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    with_brokers_ahead(monkeypatch, cluster, 24 * HOUR_MS)
    now_ms, messages = int(cluster.clock.time() * 1000) + 24 * HOUR_MS, 2_000
    for number in range(messages):
        cluster.produce("in", b"{}", b"k", timestamp_ms=now_ms - 1_000 * (messages - number))
    refusals = []
    refusal = RecordTimes.refusal
    monkeypatch.setattr(RecordTimes, "refusal", lambda *a: refusals.append(a) or refusal(*a))
    with structlog.testing.capture_logs() as logged:
        cluster.run(build(columns=columns))
    assert len(list(cluster.read("out"))) == messages
    assert len(refusals) <= (0 if columns else messages / 50)
    assert len([each for each in logged if "clock is behind" in each["event"]]) <= 1_000 * messages / 60_000 + 1


def test_a_clock_that_is_set_right_counts_at_once() -> None:
    """If a wrong clock is corrected, the engine stops correcting for it at once.

    If the engine still added the former error of the clock, it would refuse messages that the topic accepts.
    """
    clock = VirtualClock()
    clock.skew_s = -2 * HOUR_MS / 1000
    real_ms = int((clock.time() - clock.skew_s) * 1000)
    times = RecordTimes({"out": (HOUR_MS, HOUR_MS)}, clock, {"in": HOUR_MS})
    assert times.learn("in", real_ms + HOUR_MS)
    assert times.bounds("out")[1] == real_ms + HOUR_MS
    assert not times.learn("in", real_ms + HOUR_MS)
    clock.advance_to(60)
    assert times.bounds("out")[1] == real_ms + HOUR_MS + 60_000
    clock.skew_s = 0.0
    right = RecordTimes({"out": (HOUR_MS, HOUR_MS)}, clock)
    assert times.bounds("out")[0] == right.bounds("out")[0]
    clock.skew_s = -24 * HOUR_MS / 1000
    assert times.taken("out", 0) == real_ms + 60_000


def test_an_input_whose_limit_was_lowered_is_believed_until_a_broker_refuses() -> None:
    """The limit for timestamps of the input topic was lowered after a record was accepted.

    So the engine draws a wrong conclusion about the brokers' time from this record, until a broker refuses an output.
    """
    cluster, _ = fed(0, 5 * HOUR_MS, 0)
    cluster._broker.topics["in"].config[AFTER_KEY] = str(HOUR_MS)
    cluster.run(build(dead_letter_topic="dead"))
    assert [record.value for _, record in cluster.read("out")] == [b"1", b"2"]
    assert len(list(cluster.read("dead"))) == 1


def test_limits_come_from_the_configuration_of_topics() -> None:
    def facts(**config: str) -> TopicFacts:
        return TopicFacts("t", "id", 1, 1, config)

    known = {
        "default": facts(**{AFTER_KEY: "3600000", BEFORE_KEY: str(2**63 - 1)}),
        "both": facts(**{AFTER_KEY: "1", BEFORE_KEY: "2"}),
        "stamps": facts(**{AFTER_KEY: "1", "message.timestamp.type": "LogAppendTime"}),
        "free": facts(**{AFTER_KEY: str(2**63 - 1)}),
    }
    limits = time_limits([*known, "missing"], known)
    assert set(limits) == {"default", "both"}
    assert limits["both"] == (2, 1)


def test_a_time_beyond_the_calendar_is_shown_as_a_number() -> None:
    times = RecordTimes({"t": (1, 1)})
    assert "9223372036854775807 ms since 1970" in times.refusal("t", 2**63 - 1).message
    assert times.taken("t", 2**63 - 1) < 2**62
    assert times.taken("other", 5) == 5
