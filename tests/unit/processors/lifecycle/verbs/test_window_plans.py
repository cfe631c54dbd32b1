"""Plans that clear single windows: their texts, the commands for the workers that own the store, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.facts.files import FileFacts, FileStore
from holdfast.processors.lifecycle.plans.plan import Ready, Refused, decode, encode
from holdfast.processors.lifecycle.plans.requests import (
    Clear,
    Everything,
    Keys,
    Prefix,
    RequestInvalid,
    Restore,
    Selection,
    Windows,
    selection_of,
    window_times,
)
from holdfast.processors.lifecycle.plans.stages import ClearKeys
from holdfast.processors.lifecycle.verbs.table import decide
from holdfast.processors.lifecycle.world.running_owners import _named
from tests.unit.processors.lifecycle.worlds import stopped, world_of
from tests.window_apps import build

HOUR = 3_600_000
T = 1_763_992_800_000  # 2025-11-24T14:00
MINUTES = build(lambda frame: frame.tumbling_window(60_000, name="minutes").count().final()).topology()


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("2025-11-24T14:00..2025-11-24T15:00", (T, T + HOUR)),
        ("2025-11-24T15:00+01:00..2025-11-24T14:00:00.500Z", (T, T + 500)),
        ("2025-11-24..2025-11-25", (T - 14 * HOUR, T + 10 * HOUR)),
        (f"{T}", (T, T + 1)),
        (f"{T} .. {T + 7}", (T, T + 7)),
    ],
)
def test_times_of_windows(text: str, times: tuple[int, int]) -> None:
    assert window_times(text) == times


NO_TIMES = ["", "now", "..", f"{T}..", f"{T}..{T}", f"{T}..{T - 1}", "9" * 30, "-5", "1969-01-01"]


@pytest.mark.parametrize("text", NO_TIMES)
def test_what_is_no_time_of_a_window_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestInvalid, match="The window is ") as raised:
        window_times(text)
    assert "2026-11-25T14:00..2026-11-25T15:00" in raised.value.action


@pytest.mark.parametrize(
    ("given", "of", "asked"),
    [
        ({"keys": ()}, Everything(), {"all": True}),
        ({"keys": ("a",)}, Keys(("a",)), {"keys": ("a",)}),
        ({"keys": (), "prefix": "a"}, Prefix("a"), {"prefix": "a"}),
        ({"keys": (), "everything": True}, Everything(), {"all": True}),
    ],
)
def test_a_window_narrows_the_keys(given: dict[str, Any], of: Selection, asked: dict[str, Any]) -> None:
    made = selection_of(**{"prefix": None, "everything": False, "action": "", "window": str(T), **given})
    assert made == Windows(T, T + 1, of)  # type: ignore[arg-type]
    assert _named(made) == {**asked, "window": (T, T + 1)}


@pytest.mark.parametrize("of", [Keys(()), Prefix("")])
def test_the_limits_of_keys_hold_for_their_windows(of: Any) -> None:
    with pytest.raises(RequestInvalid):
        Clear("g", ("minutes",), Windows(T, T + 1, of))


def test_the_owners_of_a_running_processor_delete_the_windows() -> None:
    request = Clear("g", ("minutes",), Windows(T, T + HOUR, Keys(("a",))))
    plan = decide(request, world_of(MINUTES), MINUTES)
    assert isinstance(plan.verdict, Ready)
    assert decode(encode(plan)) == plan
    assert [type(stage) for stage in plan.stages] == [ClearKeys]
    said = "the windows from 2025-11-24T14:00:00.000+00:00 up to 2025-11-24T15:00:00.000+00:00, of key 'a'"
    assert explain(plan).count(said) >= 3
    again = decide(Clear("g", ("minutes",), Windows(T, T + HOUR), rewind="stay"), stopped(MINUTES), MINUTES)
    assert type(again.stages[0]).__name__ == "RunProcessor"


@pytest.mark.parametrize(
    ("place", "seen"),
    [
        (lambda frame: frame.sliding_window(10, name="minutes").count().final(), "messages of sliding windows"),
        (lambda frame: frame.tumbling_count_window(3, name="minutes").count().final(), "count-window state"),
        (lambda frame: frame.apply(lambda value, state: 1, stateful=True, store="minutes"), "key-value state"),
    ],
    ids=["sliding", "count", "functions"],
)
def test_a_store_without_windows_is_refused(place: Callable[[Any], Any], seen: str) -> None:
    topology = build(place).topology()
    plan = decide(Clear("g", (), Windows(T, T + 1)), world_of(topology), topology)
    assert isinstance(plan.verdict, Refused)
    assert f"has no windows that can be selected by time: it holds {seen}" in plan.verdict.sentence
    assert plan.stages == ()


def test_windows_that_a_file_does_not_have_stay() -> None:
    file = FileFacts("/exports/a.jsonl", "abcd", {"minutes": FileStore(1, 3, 60, (0,), ("a",))})
    plan = decide(Restore("g", file="/exports/a.jsonl"), world_of(MINUTES, file=file), MINUTES)
    assert "the present windows in store `minutes` that the file has, too; other windows stay" in plan.deleted
    assert "`holdfast apply clear g --window START..END`" in plan.undo
