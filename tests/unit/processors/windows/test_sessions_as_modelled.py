"""Sessions on the engine are as in plain Python, in any disorder, over kills and restarts; planted bugs show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application
from holdfast.dataframe.windows import Collect, Count, First, Last, Sum
from holdfast.processors.engine.dataframe.session_store import Open, SessionStore
from holdfast.processors.engine.runtime import task_time
from holdfast.processors.engine.state.window_keys import OWN_KEY, due_entry, is_session, window_of
from tests.tiers import variants
from tests.window_lives import live_through, world
from tests.windowing import Event
from tests.windowing_sessions import Sessions, Shape, expect

SEEDS = variants(range(100), tested=6)
#: Longer than any silence before the last message, shorter than the silence behind it.
IDLE_MS, SILENCE_S = 20_000, 100.0
KEYS = (b"a", b"b", b"", b"\x00holdfast", b"a/b")


def draw(random: Random, now_ms: int) -> tuple[Shape, list[Event]]:
    """Sessions, and messages in disorder: some late, some between two sessions, some ahead of the clock."""
    gap, grace = random.choice([1, 10, 25]), random.choice([0, 5, 40, 150])
    retention = random.choice([max(gap, grace), 200, 86_400_000])
    shape = Shape(gap, grace, random.choice(["key", "partition"]), random.random() < 0.7, retention)
    events, at = [], 0
    keys = KEYS[: random.choice([1, 2, len(KEYS)])]
    for _ in range(random.randint(5, 120)):
        at += random.choice([0, 1, gap + 1, 3 * gap // 2, 2 * gap, 200 if random.random() < 0.1 else 5])
        time_ms = max(1, at - random.choice([0, 0, 0, gap // 2, gap, gap, 3 * gap, 120]))
        if random.random() < 0.05:
            time_ms = now_ms + random.randint(1_000_000, 3_000_000)
        key = random.choice(keys)
        events.append(Event(key, time_ms, random.randint(1, 9)))
        if random.random() < 0.2:  # another session, and then a message between both
            events += [Event(key, time_ms + offset, random.randint(1, 9)) for offset in (2 * gap, gap)]
    return shape, events


def build(shape: Shape, state_dir: Path, *, idles: bool = False) -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        state_dir=state_dir,
        commit_every=7,
    )
    sessions = app.dataframe(app.topic("in")).session_window(shape.gap, shape.grace, "w", retention=shape.retention)
    window = sessions.agg(n=Count(), total=Sum("v"), all=Collect("v"), first=First("v"), last=Last("v"))
    placed: Any = window.final if shape.final else window.current
    options: dict[str, Any] = {"close_when_idle": IDLE_MS} if idles else {}
    placed(closing_strategy=shape.closing, **options).to_topic(app.topic("out"))
    return app


def run(seed: int, tmp_path: Path) -> tuple[Sessions, list[tuple[Any, ...]], dict[tuple[bytes, str], Any]]:
    """One life: the model, the results in the output topic, and the store in the changelog."""
    random, (cluster, now_ms) = Random(seed), world()
    shape, events = draw(random, now_ms)
    idles = shape.final and shape.closing == "partition" and random.random() < 0.5
    app = build(shape, tmp_path, idles=idles)
    found = live_through(cluster, app, events, random, SILENCE_S if idles else 3.0)
    model = expect(shape, events, now_ms)
    if idles:
        model.go_on(model.time + int(SILENCE_S * 1000) - IDLE_MS)
    return model, [(key, *made.values()) for key, made in found], cluster.state(app, "w")


def check(seed: int, tmp_path: Path) -> Sessions:
    with pytest.MonkeyPatch.context() as patch:  # so that what ends at once closes in several commits
        patch.setattr(task_time, "CLOSED_AT_ONCE", (1, 3, 5_000)[seed % 3])
        patch.setattr(task_time, "REMOVED_AT_ONCE", (2, 5_000)[seed % 2])
        model, results, state = run(seed, tmp_path)
    hashable = [(*made[:5], tuple(made[5]), *made[6:]) for made in model.results]
    assert Counter((*made[:5], tuple(made[5]), *made[6:]) for made in results) == Counter(hashable)
    if not model.shape.final:
        for key in KEYS:
            assert [each for each in results if each[0] == key] == [each for each in model.results if each[0] == key]
    check_state(model, state)
    return model


def check_state(model: Sessions, state: dict[tuple[bytes, str], Any]) -> None:
    """The store has the sessions of the model, nothing that a merge swallowed, and an index that fits them."""
    shape, opens, closed = model.shape, {}, {}
    for (key, name), made in state.items():
        if is_session(name):
            opens[key, made["session"]["start"], made["session"]["end"]] = made["count"]["n"]
        elif (window := window_of(name)) is not None:
            closed[key, *window] = made["count"]["n"]
    sessions = [(key, each) for key, found in model.by_key.items() for each in found]
    assert opens == {(key, each.start, each.end): len(each.events) for key, each in sessions if each.open}
    kept = {(key, each.start, each.end): len(each.events) for key, each in sessions if not each.open}
    lasts = shape.gap + shape.grace + shape.retention
    stays = {place: count for place, count in kept.items() if place[2] + lasts > model.time}
    assert stays.items() <= closed.items() <= kept.items()
    # ``key`` closes after its message, so that a session stays at least as long; a session may stay a millisecond more.
    assert shape.closing == "key" or all(place[2] + lasts >= model.time for place in closed)
    entries = [due_entry(name) for key, name in state if key == OWN_KEY and name.startswith("due/")]
    indexed = Counter(entry.message_key for entry in entries)
    assert indexed == Counter(key for key, *_ in [*closed, *(opens if shape.closing == "partition" else ())])


@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_are_as_in_plain_python(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def test_the_seeds_merge_sessions_and_have_late_messages() -> None:
    drawn = [draw(Random(seed), 10**9) for seed in range(6)]
    models = [expect(shape, events, 10**9) for shape, events in drawn]
    assert sum(model.merged for model in models) > 10
    assert sum(model.late for model in models) > 10


# -- planted bugs ------------------------------------------------------------------------------------------------------


def _does_not_merge(patch: pytest.MonkeyPatch) -> None:
    former = SessionStore._reached
    patch.setattr(SessionStore, "_reached", lambda self, *given: former(self, *given)[-1:])


def _leaves_what_it_swallowed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionStore, "_leave_index", lambda self, session, raw_key: None)


def _closes_early(patch: pytest.MonkeyPatch) -> None:
    former = SessionStore._of_entry

    def early(self: SessionStore, entry: Any) -> Open | None:
        session = former(self, entry)  # as if it had not grown since its entry was written
        return session if session is None else session._replace(end=entry.end)

    patch.setattr(SessionStore, "_of_entry", early)


def _closes_twice(patch: pytest.MonkeyPatch) -> None:
    former = SessionStore._settle

    def forgets(self: SessionStore, session: Open, due_ms: int, raw_key: bytes) -> None:
        former(self, session, due_ms, raw_key)
        self._keep(session._replace(entered=[due_ms, session.end]))

    patch.setattr(SessionStore, "_settle", forgets)


def _counts_late_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionStore, "_is_late", lambda self, due_ms, known: False)


@pytest.mark.parametrize(
    "bug", [_does_not_merge, _leaves_what_it_swallowed, _closes_early, _closes_twice, _counts_late_ones]
)
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        for seed in range(60):
            try:
                check(seed, tmp_path / str(seed))
            except (AssertionError, KeyError):
                return
    raise AssertionError("no seed found it")
