"""Steps that process batches as columns: which streams use columns, and which messages are processed without them.

The results are equal in both cases.
"""

import json
from random import Random

import pytest
import structlog

from holdfast import Application, Collect, Count, Last, Max, Mean, Min, Sum
from holdfast.processors.engine.aggregates.columnar import ColumnarAggregation
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime.task import columns, task
from holdfast.processors.engine.runtime.task.columns import ColumnarStream, columnar_stream
from holdfast.processors.engine.steps.outbox import Outboxes
from holdfast.processors.testing import InMemoryCluster
from tests.mechanics.tiers import variants

COLUMNS = {"user": Last("user"), "n": Count(), "total": Sum("v"), "mean": Mean("v"), "least": Min("v")}


def application(state_dir=None, **settings):
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        dead_letter_topic="dead",
        state_dir=state_dir,
        **settings,
    )
    app.dataframe(app.topic("in")).aggregate(COLUMNS, store="totals").to_topic(app.topic("out"))
    return app


def feed(cluster, random, count, spoilt=0.0):
    for _ in range(count):
        key = b"k%d" % random.randrange(40)
        amount = random.choice([random.random() * 1e3, random.randrange(100), 0.1, -0.0])
        value = {"user": key.decode(), "v": amount}
        if random.random() < spoilt:
            value = random.choice([{"v": "text"}, {"user": 1}, {"user": "x", "v": None}, [1]])
        raw = None if random.random() < spoilt / 4 else json.dumps(value).encode()
        cluster.produce("in", raw, None if random.random() < spoilt / 4 else key)


def told(cluster, app):
    dead = [(r.key, r.value, r.headers) for _, r in cluster.read("dead")]
    changelog = [(r.key, r.value) for _, r in cluster.read("g-totals-changelog") if r.key[:1] != b"\x00"]
    return [(r.key, r.value, r.timestamp_ms) for _, r in cluster.read("out")], dead, dict(changelog)


@pytest.fixture
def taken(monkeypatch):
    """The number of messages that were processed on columns."""
    count = [0]
    take = ColumnarStream.take

    def counted(self, batch, first, last):
        done = take(self, batch, first, last)
        count[0] += (last - first) * done
        return done

    monkeypatch.setattr(ColumnarStream, "take", counted)
    return count


@pytest.mark.parametrize(("spoilt", "enough"), variants([(0.0, 3_000), (0.001, 1_500), (0.3, 0)], tested=2))
def test_the_engine_gives_the_same_bytes_by_columns_and_message_by_message(
    spoilt, enough, taken, monkeypatch, tmp_path
):
    results = []
    for by_columns in (True, False):
        if not by_columns:
            seen = taken[0]
            monkeypatch.setattr(task, "columnar_stream", lambda *_: None)
        cluster, random = InMemoryCluster(), Random(7)
        for topic in ("in", "out", "dead"):
            cluster.create_topic(topic)
        for turn in range(3):
            feed(cluster, random, 1_000, spoilt)
            # the second start continues on the disk of the first one; the third start restores from the changelog
            cluster.run(application(tmp_path / f"{by_columns}-{turn // 2}"))
        results.append(told(cluster, application()))
    assert results[0] == results[1]
    assert seen >= enough
    assert taken[0] == seen


def test_state_that_one_way_wrote_is_read_by_the_other(taken, monkeypatch, tmp_path):
    cluster, plain, random = InMemoryCluster(), InMemoryCluster(), Random(1)
    for each in (cluster, plain):
        for topic in ("in", "out", "dead"):
            each.create_topic(topic)
    original = columnar_stream
    for turn in range(4):
        seed = random.random()
        feed(cluster, Random(seed), 300)
        feed(plain, Random(seed), 300)
        monkeypatch.setattr(task, "columnar_stream", original if turn % 2 else lambda *_: None)
        cluster.run(application(tmp_path / "mixed"))
        monkeypatch.setattr(task, "columnar_stream", lambda *_: None)
        plain.run(application(tmp_path / "plain"))
    assert told(cluster, None) == told(plain, None)
    assert taken[0] == 600


def test_few_commits_and_many_give_the_same(taken, tmp_path):
    results = []
    for every in (0, 130):
        cluster = InMemoryCluster()
        for topic in ("in", "out", "dead"):
            cluster.create_topic(topic)
        feed(cluster, Random(3), 2_000, 0.002)
        cluster.run(application(tmp_path / str(every), commit_every=every))
        results.append(told(cluster, None))
    assert results[0] == results[1]
    assert taken[0] > 0


def doubled(sdf):
    sdf["v"] = sdf["v"] * 2
    return sdf


def half_of_large(sdf):
    sdf = sdf[(sdf["v"] > 20) & ~sdf["user"].isin(["k1", "k2"])]
    sdf["half"] = sdf["v"] / 2 + 0
    sdf["v"] = sdf["half"]
    return sdf[["v", "user"]]


def some(sdf):
    return sdf[sdf["v"] % 3 == 1]


def none(sdf):
    return sdf[sdf["v"] < -5]


def renamed_user(sdf):
    sdf["user"] = sdf["user"][-1:] + "-" + sdf["user"]
    return sdf[sdf.contains("v") & sdf["user"].notnull() | (sdf["v"] == 5)]


PREFIXES = (doubled, half_of_large, some, none, renamed_user)


def aggregated(sdf):
    return sdf.aggregate(COLUMNS, store="totals")


def windowed(sdf):
    return sdf.tumbling_window(2_000, 500, name="totals").agg(total=Sum("v"), n=Count()).current("partition")


def hopping(sdf):
    return sdf.hopping_window(2_000, 700, name="totals").agg(most=Max("v"), n=Count()).final("partition")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("behind", [aggregated, windowed, hopping])
@pytest.mark.parametrize("spoilt", variants([0.002, 0.0]))
def test_columns_before_an_aggregation_or_a_window_give_the_same_bytes(
    prefix, behind, spoilt, taken, monkeypatch, tmp_path
):
    def build(state_dir=None):
        app = Application(
            "in-memory",
            consumer_group="g",
            auto_offset_reset="earliest",
            loglevel=None,
            dead_letter_topic="dead",
            state_dir=state_dir,
            commit_every=400,
        )
        behind(prefix(app.dataframe(app.topic("in")))).to_topic(app.topic("out"))
        return app

    results = []
    for by_columns in (True, False):
        if not by_columns:
            seen = taken[0]
            monkeypatch.setattr(task, "columnar_stream", lambda *_: None)
        cluster, random = InMemoryCluster(), Random(11)
        for topic in ("in", "out", "dead"):
            cluster.create_topic(topic)
        for turn in range(2):
            for at in range(900):
                value = {
                    "user": f"k{random.randrange(9)}",
                    "v": random.choice([random.random() * 99, random.randrange(99)]),
                }
                if random.random() < spoilt:
                    value = random.choice([{"v": "text"}, {"user": "k7"}, {"user": "x", "v": None}, [1], {"v": 5}])
                key, time_ms = (
                    value.get("user", "z") if isinstance(value, dict) else "z",
                    1_690_000_000_000 + turn * 9_000,
                )
                late_ms = random.choice([0, 0, 0, 300, 4_000])
                headers = [("h", b"%d" % at)] if at % 7 == 0 else None
                cluster.produce(
                    "in",
                    json.dumps(value).encode(),
                    key.encode(),
                    timestamp_ms=time_ms + at * 10 - late_ms,
                    headers=headers,
                )
            cluster.run(build(tmp_path / f"{by_columns}"))
        results.append((told(cluster, None), [record.headers for _, record in cluster.read("out")]))
    assert results[0] == results[1]
    assert seen >= 800
    assert taken[0] == seen
    assert prefix is none or len(results[0][0][0]) > 10


def shaped(build, **topics):
    app = Application("in-memory", consumer_group="g", loglevel=None)
    frame = app.dataframe(app.topic("in", **topics))
    build(app, frame)
    return frame


class AnyState:
    record_bytes_max = 1 << 20
    cache_bytes = 1 << 20

    def attach(self, rows):
        self.rows = rows


def is_by_columns(frame):
    states = {node.store: AnyState() for node in frame.source.walk() if node.store}
    return columnar_stream(frame, [frame], states, Outboxes(), {}, RecordTimes()) is not None


def test_what_is_an_aggregation_and_nothing_else_goes_by_columns():
    n = {"n": Count()}
    assert is_by_columns(shaped(lambda app, frame: frame.aggregate(n).to_topic(app.topic("a"))))
    assert is_by_columns(
        shaped(lambda app, frame: frame.aggregate(n).to_topic(app.topic("a")).to_topic(app.topic("b")))
    )
    for prefix in PREFIXES:
        assert is_by_columns(shaped(lambda app, frame: prefix(frame).aggregate(COLUMNS).to_topic(app.topic("a"))))  # noqa: B023
    others = [
        shaped(lambda app, frame: frame[frame["v"].apply(abs) > 1].aggregate(n).to_topic(app.topic("a"))),
        shaped(lambda app, frame: frame.fill(v=1).aggregate(n).to_topic(app.topic("a"))),
        shaped(lambda app, frame: frame[["u"]].aggregate({"s": Sum("v")}).to_topic(app.topic("a"))),
        shaped(lambda app, frame: frame[frame["v"] > 1].aggregate({"s": Sum(len)}).to_topic(app.topic("a"))),
        shaped(lambda app, frame: frame[frame["v"] > 1].apply(len).aggregate(n).to_topic(app.topic("a"))),
        shaped(lambda app, frame: frame.aggregate(n)),
        shaped(lambda app, frame: frame.aggregate(n).to_topic(app.topic("a")).to_topic(app.topic("a"))),
        shaped(lambda app, frame: frame.aggregate(n).to_topic(app.topic("a"), key=lambda value: b"k")),
        shaped(lambda app, frame: frame.aggregate(n).to_topic(app.topic("a", value_serializer=repr))),
        shaped(lambda app, frame: frame.aggregate(n).filter(len).to_topic(app.topic("a"))),
        shaped(lambda app, frame: frame.filter(len).aggregate(n).to_topic(app.topic("a"))),
        shaped(lambda app, frame: frame.aggregate(n).to_topic(app.topic("a")), value_deserializer="str"),
        shaped(lambda app, frame: frame.aggregate(n).to_topic(app.topic("a")), key_deserializer="str"),
        shaped(lambda app, frame: frame.aggregate({"all": Collect("v", limit=2)}).to_topic(app.topic("a"))),
        shaped(lambda app, frame: frame.apply(lambda value, state: 1, stateful=True).to_topic(app.topic("a"))),
    ]
    assert [is_by_columns(frame) for frame in others] == [False] * len(others)


def test_without_numpy_an_aggregation_runs_message_by_message_and_the_log_says_so(monkeypatch):
    plain = shaped(lambda app, frame: frame.aggregate({"n": Count()}).to_topic(app.topic("a")))
    assert is_by_columns(plain)
    columns._numpy_is_there.cache_clear()
    monkeypatch.setattr(columns, "package_folder", lambda name: None)
    try:
        with structlog.testing.capture_logs() as events:
            assert not is_by_columns(plain)
            assert not is_by_columns(plain)
    finally:
        columns._numpy_is_there.cache_clear()
    assert [each["install"] for each in events] == ["make setup"]


def test_after_slices_that_do_not_fit_most_are_not_even_tried(monkeypatch, taken, tmp_path):
    monkeypatch.setattr(columns, "RUN_MIN", 48)
    tried = []
    original = ColumnarAggregation.picked
    monkeypatch.setattr(ColumnarAggregation, "picked", lambda self, *slices: tried.append(1) or original(self, *slices))
    cluster = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        cluster.create_topic(topic)
    for _ in range(40):
        for number in range(100):
            cluster.produce("in", b'{"user": "u", "v": %d}' % (1 << 60), b"k%d" % number)
    cluster.run(application(tmp_path, commit_every=100))
    assert taken[0] == 0
    assert len(cluster.read("out")) == 4_000
    assert 0 < len(tried) < 60
