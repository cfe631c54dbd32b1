"""The checks after each round find every kind of violation."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.dagster.rounds.draws import drawn
from tests.dagster.rounds.effects import wrong_counts
from tests.dagster.rounds.history import Event, broken_rules, holds_of
from tests.dagster.rounds.play import Round


def at(seq: int, kind: str, number: int, token: int, holder: str | None, when: float, beat: float) -> Event:
    return Event(seq, when, kind, number, token, holder, beat, False, "")  # type: ignore[arg-type]


TAKEN = at(1, "apply", 1, 1, "ann", 100.0, 100.0)


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([TAKEN, at(2, "apply", 1, 2, "bob", 161.0, 161.0)], ""),
        ([TAKEN, at(2, "apply", 1, 2, "bob", 130.0, 130.0)], "silent for 30.0 s only"),
        ([TAKEN, at(2, "apply", 1, 1, "bob", 170.0, 170.0), at(3, "apply", 2, 1, "bob", 171.0, 171.0)], "no new token"),
        ([TAKEN, at(2, "incident", 1, 2, "run", 110.0, 110.0)], "two holders"),
        (
            [TAKEN, at(2, "apply", 1, 2, None, 110.0, 100.0), at(3, "incident", 4, 2, "run", 110.0, 110.0)],
            "for 10.0 s",
        ),
        ([TAKEN, at(2, "apply", 1, 2, None, 110.0, 100.0), at(3, "incident", 4, 3, "run", 110.0, 110.0)], ""),
    ],
)
def test_a_hold_that_is_not_alone_is_found(events: list[Event], found: str) -> None:
    said = "; ".join(broken_rules(events, lambda holder: False))
    assert found in said
    assert bool(found) == bool(said)
    assert broken_rules(events[:1], lambda holder: False) == []


def test_the_hold_of_a_dead_one_may_be_taken_at_once() -> None:
    events = [TAKEN, at(2, "apply", 1, 2, "bob", 101.0, 101.0)]
    assert broken_rules(events, lambda holder: holder == "ann") == []
    assert [(each.holder, each.since, each.until) for each in holds_of(events)] == [
        ("ann", 100.0, 101.0),
        ("bob", 101.0, None),
    ]


@pytest.mark.parametrize(
    ("counts", "cleared", "found"),
    [
        ([1, 2, 3, 4], 0, ""),
        ([1, 2, 1, 2], 1, ""),
        ([1, 2, 3], 0, "4 records in, 3 out"),
        ([1, 2, 3, 3], 0, "counts [[3, 3]] follow each other"),
        ([2, 3, 4, 5], 0, "the first count is 2"),
        ([1, 1, 1, 2], 1, "cleared 1 times, and begins again 2 times"),
        ([1, 2, 3, 4], 1, "cleared 1 times, and begins again 0 times"),
    ],
)
def test_a_record_or_clear_without_its_one_effect_is_found(counts: list[int], cleared: int, found: str) -> None:
    said = "; ".join(wrong_counts(Counter({"k": 4}), {"k": counts}, Counter({"k": cleared})))
    assert found in said
    assert bool(found) == bool(said)


def test_a_hold_that_began_and_ended_while_a_daemon_was_started_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    history = SimpleNamespace(events=lambda after: [TAKEN][after:], runs=lambda after: [])
    here: Any = SimpleNamespace(history=history)
    round_ = Round(here, drawn(6), struck_at=100.0, thawed=True)
    monkeypatch.setattr(Round, "_is_quiet", lambda self: True)
    round_._finish()
    assert [held.holder for held in holds_of(round_.events)] == ["ann"]
