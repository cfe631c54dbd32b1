"""Numbers at their limits (NaN, infinities, signed zeros, huge numbers) in each step that computes with numbers.

A step gives the same result on columns and one message at a time, and with or without a restart. If JSON cannot hold a
result, only its message fails, with an error that names the reason. Later messages are processed normally.
"""

from __future__ import annotations

import json
from collections import Counter as Counted
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, State
from holdfast import Collect as CollectNewest
from holdfast.dataframe.windows import (
    Aggregator,
    Collect,
    Count,
    Earliest,
    First,
    Last,
    Latest,
    Max,
    Mean,
    Min,
    Reduce,
    Sum,
)
from holdfast.infra.kafka.records import Batch
from holdfast.processors.engine.aggregates.window_aggregates import WindowAggregation
from holdfast.processors.engine.runtime.task import columns, task
from holdfast.processors.engine.runtime.task.columns import ColumnarStream
from tests.mechanics.tiers import variants

#: Numbers as texts in a producer's JSON.
WRITTEN = (
    *("1e308", "-1e308", "1.7976931348623157e308", "-1.7976931348623157e308", "5e-324", "-5e-324", "0.0", "-0.0"),
    *("0", "-0", "0.1", "1", "9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775809"),
    *("18446744073709551616", "1e22", "1e999", "1" + "0" * 307, "1" + "0" * 400, "1" + "0" * 5_000, "true", "null"),
)
#: Values that a function may make of a message, by name.
MADE = {
    **{"nan": nan, "inf": inf, "-inf": -inf, "huge": 10**4_400, "large": 10**320, "yes": True, "text": "7"},
    **{"decimal": Decimal(7), "decimal nan": Decimal("nan"), "none": None},
}
#: Words of plain Python errors. An error of Holdfast names the column, field or key, and has none of these words.
RAW = frozenset({"fsum", "convert", "zero"})
KEYS = (b"a", b"b")
MESSAGES, TAIL = 70, 24
T = 1_690_000_000_000


def number(value: dict[str, Any]) -> Any:
    return MADE[value["made"]] if "made" in value else value["v"]


def sized(value: dict[str, Any]) -> Any:
    """Return the number of a message, for functions that compare numbers.

    A value of another type raises an error. Otherwise it would be stored, and later messages would fail.
    """
    made = number(value)
    if type(made) not in (int, float):
        raise TypeError(f"expected a number, got {made!r}")
    return made


def arithmetic(of: Any) -> dict[str, Any]:
    return {"n": Count(), "sum": Sum(of), "mean": Mean(of), "least": Min(of), "most": Max(of)}


def kept(of: Any) -> dict[str, Any]:
    reduced = Reduce(
        reducer=lambda total, value: max(total, sized(value)),
        initializer=sized,
        merger=lambda earlier, later: max(earlier, later),
    )
    return {
        **{"first": First(of), "last": Last(of), "early": Earliest(of), "late": Latest(of), "all": Collect(of)},
        "reduced": reduced,
    }


def counter(value: dict[str, Any], state: State) -> dict[str, Any]:
    return {"total": state.increment("total", number(value)), "list": state.append("list", number(value), 3)}


def averaged(stream: Any, of: Any, over: Any) -> Any:
    stream = stream.moving_average(of, over, "mean", store="s")
    return stream.apply(lambda value: {"mean": value["mean"]})


Declared = Callable[[Any, Any, Any], Any]
KINDS: dict[str, Declared] = {
    "tumbling": lambda stream, of, make: stream.tumbling_window(60, 4, name="s").agg(**make(of)),
    "hopping": lambda stream, of, make: stream.hopping_window(60, 20, 4, name="s").agg(**make(of)),
    "sliding": lambda stream, of, make: stream.sliding_window(40, 4, name="s").agg(**make(of)),
    "session": lambda stream, of, make: stream.session_window(9, 4, name="s").agg(**make(of)),
    "tumbling count": lambda stream, of, make: stream.tumbling_count_window(5, name="s").agg(**make(of)),
    "hopping count": lambda stream, of, make: stream.hopping_count_window(6, 2, name="s").agg(**make(of)),
    "sliding count": lambda stream, of, make: stream.sliding_count_window(4, name="s").agg(**make(of)),
}
STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "aggregate": lambda stream, of: stream.aggregate({**arithmetic(of), "last": Last(of)}, store="s"),
    "aggregate, newest": lambda stream, of: stream.aggregate({"newest": CollectNewest(of, limit=3)}, store="s"),
    "average of messages": lambda stream, of: averaged(stream, of, 3),
    "average of time": lambda stream, of: averaged(stream, of, timedelta(milliseconds=30)),
    "duplicates": lambda stream, of: stream.drop_duplicates(of, within=40, store="s"),
    "state": lambda stream, of: stream.apply(counter, stateful=True, store="s"),
}


def _windows(kind: str, make: Any, sends: str, closing: tuple[str, ...]) -> Callable[[Any, Any], Any]:
    return lambda stream, of: getattr(KINDS[kind](stream, of, make), sends)(*closing)


for _kind in KINDS:
    for _sends in ("current", "final"):
        for _make in (arithmetic, kept):
            _closings: list[tuple[str, ...]] = [("key",), ("partition",)]
            if "count" in _kind:
                _closings = [()]
            elif _kind == "sliding":
                _closings = [("key",)]
            for _closing in _closings:
                _name = " ".join((_kind, *_closing, _sends, _make.__name__))
                STEPS[_name] = _windows(_kind, _make, _sends, _closing)
BY_COLUMNS = [name for name in STEPS if name == "aggregate"] + [
    f"{kind} partition {sends} arithmetic" for kind in ("tumbling", "hopping") for sends in ("current", "final")
]


def application(step: str | Callable[[Any, Any], Any], of: Any, folder: Path) -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        dead_letter_topic="dead",
        state_dir=folder,
    )
    placed = STEPS[step] if isinstance(step, str) else step
    placed(app.dataframe(app.topic("in")), of).to_topic(app.topic("out"))
    return app


def messages(seed: int, *, made: bool) -> list[bytes]:
    """Messages with numbers at the limits, then messages with small numbers."""
    random = Random(seed)
    drawn = [f'{{"v":{text}}}' for text in random.sample(WRITTEN, random.choice([3, 6, len(WRITTEN)]))]
    if made:
        drawn += [f'{{"made":"{name}"}}' for name in random.sample(sorted(MADE), 4)]
    sent = [random.choice(drawn) if random.random() < 0.5 else f'{{"v":{at % 4}}}' for at in range(MESSAGES)]
    sent += [f'{{"v":{at % 5}}}' for at in range(TAIL)]
    return [f'{text[:-1]},"at":{at}}}'.encode() for at, text in enumerate(sent)]


def lives(step: str, of: Any, sent: list[bytes], folder: Path, *restarts: int) -> dict[str, Any]:
    """Outputs, dead letters and state, with a restart before each message at one of these indices."""
    cluster = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        cluster.create_topic(topic)
    for at, raw in enumerate(sent):
        if at in restarts:
            cluster.run(application(step, of, folder))
        cluster.produce("in", raw, KEYS[at % 7 % 2], timestamp_ms=T + 3 * at + 20 * (at // 11))
    cluster.run(application(step, of, folder))
    outputs = [(record.key, record.value) for _, record in cluster.read("out")]
    dead = [(record.value, dict(record.headers or ())["holdfast.error"]) for _, record in cluster.read("dead")]
    state = (
        cluster.state(application(step, of, folder), "s") if step != "duplicates" else {}
    )  # with `duplicates`, expired values may still be in the store
    return {"outputs": sorted(outputs, key=repr), "dead": dead, "state": repr(sorted(state.items()))}


CASES = [(step, seed) for seed in range(8) for step in STEPS]


@pytest.mark.parametrize(("step", "seed"), variants(CASES, tested=len(STEPS)))
@pytest.mark.parametrize("of", ["v", number], ids=["field", "function"])
def test_each_step_takes_numbers_at_their_limits(
    step: str, seed: int, of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = messages(seed, made=of is number)
    monkeypatch.setattr(columns, "RUN_MIN", 2)
    monkeypatch.setattr(columns, "RUN_MAX", 16)
    by_columns = lives(step, of, sent, tmp_path / "columns", *[MESSAGES // 2] * (seed % 2 == 0))
    monkeypatch.setattr(task, "columnar_stream", lambda *_: None)
    one_by_one = lives(step, of, sent, tmp_path / "plain", *[MESSAGES // 3] * (seed % 2))
    assert by_columns == one_by_one
    for _, raw in one_by_one["outputs"]:
        json.loads(raw, parse_constant=pytest.fail)
    for raw, error in one_by_one["dead"]:
        assert raw not in sent[-TAIL // 2 :], (raw, error)
        assert not RAW.intersection(error.decode().lower().split()), error


@pytest.mark.parametrize("step", BY_COLUMNS)
def test_the_steps_that_have_columns_use_them(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Counted[str]()
    former = ColumnarStream.take

    def take(self: ColumnarStream, batch: Batch, first: int, last: int) -> bool:
        done = former(self, batch, first, last)
        taken["messages"] += (last - first) * done
        return done

    monkeypatch.setattr(columns, "RUN_MIN", 2)
    monkeypatch.setattr(columns, "RUN_MAX", 16)
    monkeypatch.setattr(ColumnarStream, "take", take)
    lives(step, "v", messages(1, made=False), tmp_path)
    assert taken["messages"] > 20


#: The headers of a dead letter with the error and the action.
TOLD = ("holdfast.error", "holdfast.error.action")


def outcome(step: Callable[[Any, Any], Any], folder: Path, *values: object) -> tuple[list[Any], list[tuple[Any, str]]]:
    """Outputs and dead letters for messages that are one millisecond apart."""
    cluster = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        cluster.create_topic(topic)
    for at, value in enumerate(values):
        raw = json.dumps(value if isinstance(value, dict) else {"v": value}).encode()
        cluster.produce("in", raw, b"k", timestamp_ms=T + at)
    cluster.run(application(step, number, folder))
    dead = [(json.loads(each.value or b""), dict(each.headers or ())) for _, each in cluster.read("dead")]
    words = [(value, [headers.get(name) or b"" for name in TOLD]) for value, headers in dead]
    told = [(value, b" ".join(each).decode()) for value, each in words]
    return [json.loads(each.value or b"") for _, each in cluster.read("out")], told


@pytest.mark.parametrize("sends", ["current", "final"])
@pytest.mark.parametrize("kind", ["sliding", "hopping"])
def test_a_message_fails_that_a_later_count_window_can_not_add(kind: str, sends: str, tmp_path: Path) -> None:
    def step(stream: Any, of: Any) -> Any:
        counted = stream.hopping_count_window(3, 1) if kind == "hopping" else stream.sliding_count_window(3)
        return getattr(counted.agg(total=Sum(of)), sends)()

    # The first window sums to 1e308. The second window would add 1e308 twice, which is more than a float can hold.
    sent, dead = outcome(step, tmp_path, -1e308, 1e308, 1e308, 1, 2, 3, 4)
    assert [value["v"] for value, _ in dead] == [1e308]
    assert [each["total"] for each in sent if each["end"] - each["start"] >= 2][-1] == 9


def test_windows_behind_a_large_number_are_computed_once_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = Counted[int]()
    former = WindowAggregation.computed_due

    def counting(self: WindowAggregation, start: int, end: int, items: Any, **how: Any) -> Any:
        computed[items[-1][0] - T] += 1
        return former(self, start, end, items, **how)

    monkeypatch.setattr(WindowAggregation, "computed_due", counting)
    outcome(lambda stream, of: stream.sliding_count_window(3).agg(total=Sum(of)).final(), tmp_path, 1, 1e305, *[1] * 5)
    assert computed == {0: 1, 1: 2, 2: 3, 3: 3, 4: 1, 5: 1, 6: 1}


def test_nan_and_infinities_are_duplicates_of_nothing(tmp_path: Path) -> None:
    values = [{"made": "none"}, {"made": "nan"}, {"made": "inf"}, {"v": 1}, {"v": 1.0}, {"v": True}, {"v": 1}]
    sent, dead = outcome(lambda stream, of: stream.drop_duplicates(of, within=100), tmp_path, *values)
    assert sent == [{"made": "none"}, {"v": 1}, {"v": 1.0}, {"v": True}]
    assert [value for value, _ in dead] == [{"made": "nan"}, {"made": "inf"}]
    assert "value is nan" in dead[0][1]

    def nested(stream: Any, of: Any) -> Any:
        return stream.drop_duplicates(lambda v: ["id", of(v)], within=100)

    assert "value[1] is nan" in outcome(nested, tmp_path / "nested", {"made": "nan"})[1][0][1]


@pytest.mark.parametrize("over", [3, 7, timedelta(milliseconds=50)])
def test_an_average_of_the_largest_numbers_is_their_mean(over: Any, tmp_path: Path) -> None:
    largest = 1.7976931348623157e308
    sent, dead = outcome(
        lambda stream, of: averaged(stream, of, over), tmp_path, *[largest] * 9, -largest, 0, *[1] * 60
    )
    assert dead == []
    assert [each["mean"] for each in sent[:9]] == [largest] * 9
    assert sent[-1]["mean"] == 1  # values that have left the window do not affect later sums


def test_a_counter_of_a_number_beyond_floats_says_so(tmp_path: Path) -> None:
    values = [{"made": "large"}, 1.5, 1, 1e308]
    sent, dead = outcome(lambda stream, of: stream.apply(counter, stateful=True, store="s"), tmp_path, *values)
    assert [each["total"] for each in sent] == [10**320, 10**320 + 1]
    assert [value for value, _ in dead] == [{"v": 1.5}, {"v": 1e308}]
    assert "to be incremented by float 1.5: no float can hold one of them" in dead[0][1]
    assert "Increment it by a whole number." in dead[0][1]


def test_a_counter_that_is_a_float_says_by_which_numbers_it_can_grow(tmp_path: Path) -> None:
    values = [1.5, {"made": "large"}, 1.7e308]
    sent, dead = outcome(lambda stream, of: stream.apply(counter, stateful=True, store="s"), tmp_path, *values)
    assert [each["total"] for each in sent] == [1.5, 1.7e308]
    assert [value for value, _ in dead] == [{"made": "large"}]
    assert "Increment it by a number of at most 1.8e308." in dead[0][1]


class Ratio(Aggregator):
    """The sum of all numbers divided by the sum of the numbers above 5.

    Without such numbers, the result raises an error.
    """

    def initialize(self) -> Any:
        return [0, 0]

    def agg(self, old: Any, new: Any) -> Any:
        return [old[0] + new["v"], old[1] + (new["v"] if new["v"] > 5 else 0)]

    def result(self, value: Any) -> Any:
        return value[0] / value[1]

    def merge(self, earlier: Any, later: Any) -> Any:
        return [earlier[0] + later[0], earlier[1] + later[1]]


class Unwritable(Ratio):
    """A column whose result JSON cannot hold."""

    def result(self, value: Any) -> Any:
        return object() if not value[1] else value[0] / value[1]


CLOSES: dict[str, Callable[[Any, Any], Any]] = {
    "by stream time": lambda stream, column: stream.tumbling_window(10).agg(r=column).final("partition"),
    "by retention": lambda stream, column: stream.hopping_window(10, 10, retention=5).agg(r=column).final(),
    "sessions": lambda stream, column: stream.session_window(3).agg(r=column).final("partition"),
    "sessions by retention": lambda stream, column: stream.session_window(3, retention=5).agg(r=column).final(),
}


@pytest.mark.parametrize("column", [Ratio(), Unwritable()], ids=["raises", "unwritable"])
@pytest.mark.parametrize("kind", CLOSES)
def test_a_column_that_fails_when_its_window_closes_fails_the_window_alone(
    kind: str, column: Ratio, tmp_path: Path
) -> None:
    """A column that fails when its window closes affects only this window.

    Formerly the error stopped the worker at each start.
    """
    cluster = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        cluster.create_topic(topic)
    for key, at, value in (("b", 0, 8), ("b", 1, 2), ("a", 2, 1), ("a", 3, 2), ("c", 20, 6), ("d", 1_000, 7)):
        cluster.produce("in", b'{"v":%d}' % value, key.encode(), timestamp_ms=T + at)
    cluster.run(application(lambda stream, _: CLOSES[kind](stream, column), number, tmp_path))
    assert {each.key: json.loads(each.value or b"")["r"] for _, each in cluster.read("out")} == {b"b": 1.25, b"c": 1.0}
    [(_, dead)] = cluster.read("dead")
    assert dead.key == b"a"
    assert json.loads(dead.value or b"").get("r") in (None, "object that JSON can't write")
    cluster.run(application(lambda stream, _: CLOSES[kind](stream, column), number, tmp_path))
    assert len(cluster.read("dead")) == 1
