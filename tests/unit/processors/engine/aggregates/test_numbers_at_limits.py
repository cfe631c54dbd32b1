"""Numbers at their limits. Columns and the plain loop agree on overflowing sums, signed zeros and large numbers."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.dataframe.windows import Count, Last, Max, Mean, Min, Sum
from holdfast.processors.engine.runtime.task import task
from tests.mechanics.tiers import variants

NUMBERS = (
    *(b"1e308", b"-1e308", b"1.7976931348623157e308", b"5e-324", b"-5e-324", b"2.2250738585072014e-308"),
    *(b"0.0", b"-0.0", b"0", b"-0", b"0.1", b"1", b"9007199254740991", b"9007199254740993", b"-9007199254740992"),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"18446744073709551616", b"1e22"),
    *(b"1e999", b"-1e999", b"1" + b"0" * 400),
)
COLUMNS = {"n": Count(), "sum": Sum("v"), "mean": Mean("v"), "least": Min("v"), "most": Max("v"), "last": Last("v")}
T = 1_690_000_000_000


def run(kind: str, seed: int, folder: Path) -> dict[str, Any]:
    """Outputs, dead letters and changelog of a run, as bytes."""
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        dead_letter_topic="dead",
        state_dir=folder,
    )
    frame = app.dataframe(app.topic("in"))
    if kind == "aggregate":
        frame.aggregate(COLUMNS, store="s").to_topic(app.topic("out"))
    else:
        window = frame.tumbling_window(200, name="s").agg(**COLUMNS)
        placed = window.current("partition") if kind == "current" else window.final("partition")
        placed.to_topic(app.topic("out"))
    cluster, random = InMemoryCluster(), Random(seed)
    for topic in ("in", "out", "dead"):
        cluster.create_topic(topic)
    few = random.sample(NUMBERS, random.choice([2, 4, len(NUMBERS)]))
    for number in range(300):
        raw, key = b'{"v": %b}' % random.choice(few), b"k%d" % random.randrange(4)
        cluster.produce("in", raw, key, timestamp_ms=T + 2 * number)
    cluster.run(app)
    changelog = [(r.key, r.value) for _, r in cluster.read("g-s-changelog") if (r.key or b"")[:1] != b"\x00"]
    return {
        "out": [(r.key, r.value) for _, r in cluster.read("out")],
        "dead": [(r.key, r.value, dict(r.headers or ()).get("holdfast.error")) for _, r in cluster.read("dead")],
        "changelog": {key: value for key, value in dict(changelog).items() if value is not None},
    }


@pytest.mark.parametrize("seed", variants(range(40), tested=2))
@pytest.mark.parametrize("kind", ["aggregate", "current", "final"])
def test_columns_and_the_plain_loop_agree(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_columns = run(kind, seed, tmp_path / "columns")
    monkeypatch.setattr(task, "columnar_stream", lambda *_: None)
    one_by_one = run(kind, seed, tmp_path / "plain")
    for what, seen in one_by_one.items():
        assert by_columns[what] == seen, what


def averages(*numbers: bytes) -> list[str]:
    """The moving averages over two messages, and the errors of the dead letters."""
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead"
    )
    app.dataframe(app.topic("in")).moving_average("v", 2, "mean").to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    for topic in ("in", "dead"):
        cluster.create_topic(topic)
    for number in numbers:
        cluster.produce("in", b'{"v": %b}' % number, b"k")
    cluster.run(app)
    dead = [dict(record.headers or ())["holdfast.error"] for _, record in cluster.read("dead")]
    return [str(json.loads(record.value or b"")["mean"]) for _, record in cluster.read("out")] + [
        (error or b"").decode() for error in dead
    ]


def test_a_moving_average_of_the_largest_numbers() -> None:
    assert averages(b"1.7e308", b"1.7e308", b"-1.7e308") == ["1.7e+308", "1.7e+308", "0.0"]
    assert ["expected a number" in error for error in averages(b"1" + b"0" * 400)] == [True]
