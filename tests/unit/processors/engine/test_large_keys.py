"""Message keys near the record limit: each message counts or fails alone, and no commit fails for good.

The indexes by time store keys in hexadecimal, and the windows' clock stores two of them in one record. So these records
are several times as large as the key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, Count, InMemoryCluster, StreamingDataFrame
from holdfast.processors.engine.record_size import OVERHEAD_BYTES

#: `max.message.bytes` of the changelog, and the lengths of the keys as shares of it.
LIMIT = 16_000
SHARES = (0.05, 0.12, 0.2, 0.24, 0.26, 0.3, 0.45, 0.55, 0.8, 0.98, 1.2)
SMALL = b"k"
#: The first event time in milliseconds. It is not 0, because records without a time have 0.
BEGIN = 1_000_000

Declare = Callable[[StreamingDataFrame, Application], StreamingDataFrame]


class Reminding:
    """A processor that sets a timer for each message."""

    def on_message(self, value: Any, context: Any) -> None:
        context.set_timer("later", context.timestamp + 10)
        context.emit({"n": 1})

    def on_timer(self, name: str, time: int, context: Any) -> None:
        context.emit({"n": 0})


def ending(value: Any, state: Any) -> Any:
    state.set("n", state.get("n", 0) + 1)
    return {"n": state.get("n")}


def interval(frame: StreamingDataFrame, app: Application) -> StreamingDataFrame:
    both = frame.filter(lambda value: value["n"] >= 0)
    return frame.join_interval(both, "outer", on_merge=lambda a, b: {"n": 1}, grace_ms=0, name="w")


STEPS: dict[str, Declare] = {
    "tumbling": lambda f, _: f.tumbling_window(10, name="w").count().final("partition"),
    "tumbling current": lambda f, _: f.tumbling_window(10, name="w").count().current("partition"),
    "tumbling by key": lambda f, _: f.tumbling_window(10, name="w").count().current("key"),
    "hopping": lambda f, _: f.hopping_window(10, 5, name="w").count().final("partition"),
    "suppressed": lambda f, _: f.tumbling_window(10, name="w").count().current("partition").suppress(every=5),
    "session": lambda f, _: f.session_window(5, name="w").count().final("partition"),
    "sliding": lambda f, _: f.sliding_window(5, name="w").count().current(),
    "count": lambda f, _: f.tumbling_count_window(1, name="w").count().final(),
    "aggregate": lambda f, _: f.aggregate(n=Count(), store="w"),
    "ttl": lambda f, app: f.apply(ending, stateful=True, store=app.store("w", ttl=10)),
    "timers": lambda f, _: f.process(Reminding, store="w"),
    "duplicates": lambda f, _: f.drop_duplicates("n", within=timedelta(milliseconds=10), store="w"),
    "interval": interval,
    "as of": lambda f, _: f.join_asof(f.filter(lambda v: True), on_merge=lambda a, b: {"n": 1}, name="w"),
}


def run(step: str, *, plain: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[str]]:
    """The outputs, each with the length of its key, and the type names of the errors."""
    if plain:
        monkeypatch.setattr("holdfast.processors.engine.runtime.task.columns._numpy_is_there", lambda: False)
    errors: list[str] = []

    def skip(error: Exception, message: Any, log: Any) -> bool:
        errors.append(type(error).__name__)
        return True

    app = Application(
        "in-memory",
        consumer_group="p",
        auto_offset_reset="earliest",
        loglevel=None,
        on_processing_error=skip,
        changelog_config={"w": {"max.message.bytes": str(LIMIT)}},
        commit_every=3,
    )
    STEPS[step](app.dataframe(app.topic("in")), app).to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for number, share in enumerate(SHARES):
        for key in (SMALL, b"x" * int(LIMIT * share)):
            cluster.produce("in", json.dumps({"n": number}).encode(), key, timestamp_ms=BEGIN + 20 * number)
    cluster.produce("in", json.dumps({"n": 99}).encode(), SMALL, timestamp_ms=BEGIN + 1_000)
    cluster.run(app)
    assert [*cluster.committed_offsets("p").values()] == [2 * len(SHARES) + 1]
    cluster.run(app)  # this run restores the state from its changelog
    kept = [record for _, record in cluster.read("p-w-changelog")]
    assert max(len(each.key or b"") + len(each.value or b"") for each in kept) <= LIMIT - OVERHEAD_BYTES
    read = [record for _, record in cluster.read("out")]
    return [(len(record.key or b""), record.timestamp_ms, record.value) for record in read], errors


@pytest.mark.parametrize("step", STEPS)
def test_a_message_with_a_large_key_counts_or_fails_alone(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, errors = run(step, plain=False, monkeypatch=monkeypatch)
    # a count window of one message leaves no state
    assert set(errors) == ({"RecordTooLarge"} if step != "count" else set())
    assert [key for key, _, _ in outputs if key == len(SMALL)]
    assert max(key for key, _, _ in outputs) > 0.1 * LIMIT
    if step.startswith(("tumbling", "hopping", "aggregate")):
        with monkeypatch.context() as without:
            assert run(step, plain=True, monkeypatch=without) == (outputs, errors)
