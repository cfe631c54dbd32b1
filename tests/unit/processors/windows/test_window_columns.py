"""Windows by columns give the bytes of windows message by message: results, failures, state; planted bugs show."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.dataframe.windows import Count, Last, Max, Mean, Min, Reduce, Sum
from holdfast.processors.engine.dataframe.columnar_windows import ColumnarWindows
from holdfast.processors.engine.runtime import columns, task, task_time
from holdfast.processors.engine.runtime.columns import WindowedStream
from tests.tiers import variants

SEEDS = variants(range(300), tested=16)
BUILT_IN = {"n": Count(), "total": Sum("v"), "mean": Mean("v"), "least": Min("v"), "most": Max("v"), "last": Last("u")}


def _longer(held: Any, value: Any) -> Any:
    held["total"] += value["v"]  # raises for a value of a wrong type, after others have changed what they got
    held["seen"] = [*held["seen"], value["u"]][-3:]
    return held


REDUCERS: dict[str, Callable[[], Reduce]] = {
    "numbers": lambda: Reduce(lambda held, value: held + value["v"], lambda value: value["v"]),
    "objects": lambda: Reduce(_longer, lambda value: {"total": value["v"], "seen": []}),
    "anything": lambda: Reduce(lambda held, value: value.get("u"), lambda value: value.get("v")),
    "not storable": lambda: Reduce(lambda held, value: (held,) if value["v"] == 7 else 1, lambda value: None),
}


class Drawn:
    """An application with a window, and messages for it, as a seed draws them."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.duration = random.choice([20, 60, 100])
        self.step = self.duration if random.random() < 0.6 else random.choice([10, 20, 45])
        self.step = min(self.step, self.duration)
        self.grace = random.choice([0, 5, 40])
        self.retention = random.choice([self.grace, 200, 86_400_000])
        self.final = random.random() < 0.5
        self.on_late: Any = random.choice([None, None, "dead-letter", self._late])
        self.late: list[Any] = []
        self.reducer = random.choice([None, None, *REDUCERS])
        self.commit_every = random.choice([7, 50, 400])
        self.spoilt = random.choice([0.0, 0.0, 0.01, 0.2])
        self.messages = [self._message(at) for at in range(random.choice([300, 900]))]

    def _late(self, *told: Any) -> bool:
        self.late.append(told)
        return False

    def _message(self, number: int) -> tuple[bytes | None, bytes | None, int]:
        random = self.random
        at = max(1, number // random.choice([1, 1, 2]) - random.choice([0, 0, 0, 3, 30, 90]))
        if random.random() < 0.02:
            at = 100_000_000 + random.randint(-50, 3_000_000)  # around the worker's clock, and ahead of it
        amount: Any = random.choice([random.random(), random.randrange(9), 0.1, -0.0])
        value: Any = {"v": amount, "u": random.choice(["x", "é", 1, None, 2.5])}
        raw: bytes | None = json.dumps(value).encode()
        key: bytes | None = random.choice([b"a", b"b", b"", b"\x00holdfast", b"a/b", b"%d" % random.randrange(40)])
        if random.random() < self.spoilt:
            bad = [b'{"v": "text"}', b'{"v": null, "u": 1}', b"[1]", b"{", b'{"v": 1e999}', b'{"v": 1}', b"3", None]
            raw = random.choice(bad)
            key = None if random.random() < 0.3 else key
        return key, raw, at

    def application(self, state_dir: Path) -> Application:
        app = Application(
            "in-memory",
            consumer_group="g",
            auto_offset_reset="earliest",
            loglevel=None,
            dead_letter_topic="dead",
            state_dir=state_dir,
            commit_every=self.commit_every,
        )
        times: dict[str, Any] = {"name": "w", "grace_ms": self.grace, "retention": self.retention}
        window = app.dataframe(app.topic("in")).hopping_window(self.duration, self.step, on_late=self.on_late, **times)
        made = window.agg(**BUILT_IN) if self.reducer is None else window.agg(n=Count(), r=REDUCERS[self.reducer]())
        placed = made.final("partition") if self.final else made.current("partition")
        placed.to_topic(app.topic("out"))
        return app

    def run(self, state_dir: Path) -> dict[str, Any]:
        """All that a run leaves behind."""
        cluster, random = InMemoryCluster(), Random(1)
        self.late.clear()
        cluster.clock.skew_s = 100_000 - 1_700_000_000
        for topic in ("in", "out", "dead"):
            cluster.create_topic(topic, config={"message.timestamp.after.max.ms": str(2**62)})
        for first in range(0, len(self.messages), 300):
            for key, raw, at in self.messages[first : first + 300]:
                cluster.produce("in", raw, key, timestamp_ms=at)
            # a restart finds its disk, or restores from the changelog
            cluster.run(self.application(state_dir / str(random.randrange(2))))
        changelog = [(r.key, r.value) for _, r in cluster.read("g-w-changelog") if r.key[:1] != b"\x00"]
        return {
            "out": [(r.key, r.value, r.timestamp_ms, r.headers) for _, r in cluster.read("out")],
            "dead": [(r.key, r.value, r.headers) for _, r in cluster.read("dead")],
            "late": list(self.late),
            # A window that opens and leaves in one commit may have a deletion, which says nothing.
            "changelog": {key: value for key, value in dict(changelog).items() if value is not None},
        }


def both(seed: int, tmp_path: Path) -> int:
    """Compares both ways; returns how many messages went by columns."""
    counted = [0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_time, "CLOSED_AT_ONCE", (3, 5_000)[seed % 2])
        patch.setattr(task_time, "REMOVED_AT_ONCE", (2, 5_000)[seed // 2 % 2])
        patch.setattr(columns, "RUN_MIN", (2, 2, 2, 48)[seed // 4 % 4])
        patch.setattr(columns, "REST_MAX", 0)  # each run is tried
        take = WindowedStream.take

        def taken(self: WindowedStream, batch: Any, first: int, last: int) -> bool:
            done = take(self, batch, first, last)
            counted[0] += (last - first) * done
            return done

        patch.setattr(WindowedStream, "take", taken)
        by_columns = Drawn(seed).run(tmp_path / "columns")
        patch.setattr(task, "columnar_stream", lambda *_: None)
        one_by_one = Drawn(seed).run(tmp_path / "plain")
    for what, seen in one_by_one.items():
        assert by_columns[what] == seen, what
    return counted[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_by_columns_and_message_by_message_leave_the_same_bytes(seed: int, tmp_path: Path) -> None:
    both(seed, tmp_path)


def test_most_messages_go_by_columns_where_nothing_is_wrong(tmp_path: Path) -> None:
    for seed in (5, 13, 21):  # built-in columns and a reducer, current and final
        assert both(seed, tmp_path / str(seed)) == 300


def _counts_late_ones(patch: pytest.MonkeyPatch) -> None:
    former = ColumnarWindows._in_time

    def generous(self: ColumnarWindows, times: Any) -> Any:
        kept, self._spec = self._spec, replace(self._spec, grace_ms=self._spec.grace_ms + 30)
        try:
            return former(self, times)
        finally:
            self._spec = kept

    patch.setattr(ColumnarWindows, "_in_time", generous)


def _keeps_rows_that_the_steps_use(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ColumnarWindows, "leave", lambda self, keys: None)


def _keeps_rows_of_windows_that_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ColumnarWindows, "forget", lambda self, entry: None)


def _enters_no_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ColumnarWindows, "_enter", lambda self, segments, times: None)


PLANTED = [
    _counts_late_ones,
    _keeps_rows_that_the_steps_use,
    _keeps_rows_of_windows_that_left,
    _enters_no_window,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_shows(plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in range(60):
            try:
                both(seed, tmp_path / str(seed))
            except AssertionError:
                return
    raise AssertionError(f"no seed shows {plant.__name__}")
