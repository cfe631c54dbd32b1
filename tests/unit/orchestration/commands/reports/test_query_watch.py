"""``holdfast query --watch`` prints keys when they change, and ends with Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import StateAway
from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.json_documents import ANSWERS
from holdfast.orchestration.commands.reports import query_watch
from holdfast.orchestration.commands.reports.query_watch import changes, found_of
from holdfast.processors.client.answers import StateAnswer
from holdfast.processors.engine.queries.demand import Position
from tests.parts.state_workers import StateWorker, state_workers


def at(offset: int, age_s: float = 0.0) -> dict[str, Any]:
    position = Position(0, {"orders": offset}, 1.5 + age_s, age_s, "owner", "0")
    return {"position": position, "positions": (position,)}


def test_an_answer_is_shown_if_a_value_or_a_position_differs() -> None:
    answers = [
        StateAnswer("counts", "k1", False, **at(1)),
        StateAnswer("counts", "k1", True, {"n": 1}, **at(2)),
        StateAnswer("counts", "k1", True, {"n": 1}, **at(2, age_s=3.0)),
        StateAway("The task moves."),
        StateAway("The task moves."),
        StateAway("The task is being restored."),
        StateAnswer("counts", "k1", True, {"n": 1}, **at(2)),
        StateAway("The task moves."),
        StateAnswer("counts", "k1", True, {"n": 1}, **at(3)),
    ]
    left = iter(answers)
    reasons: list[str] = []

    def read() -> list[StateAnswer]:
        match next(left, None):
            case StateAnswer() as answer:
                return [answer]
            case StateAway() as away:
                raise away
        raise KeyboardInterrupt

    shown = []
    with suppress(KeyboardInterrupt):
        for each in changes(read, reasons.append, lambda: None):
            shown.append(each[0])
    assert shown == [answers[0], answers[1], answers[8]]
    assert reasons == ["The task moves.", "The task moves."]


def test_a_first_read_without_an_answer_is_an_error() -> None:
    def read() -> list[StateAnswer]:
        raise StateAway("No worker is known.")

    with pytest.raises(StateAway):
        next(changes(read, print, lambda: None))


def test_all_kinds_of_stores_have_entries() -> None:
    window = {"start": 0, "end": 60_000, "value": {"n": 3}}
    answers = [
        StateAnswer("s", "a", True, {"n": 1, "raw": b"\x00"}, **at(2)),
        StateAnswer("s", "b", True, windows=(window,), **at(2)),
        StateAnswer("s", "c", True, row={"amount": 3}, **at(2)),
        StateAnswer("s", "d", False, **at(2)),
    ]
    found = found_of(answers, 3)
    assert [(row["key"], row["state"], row.get("value", row.get("value_base64"))) for row in found.rows] == [
        ("a", "n", 1),
        ("a", "raw", "AA=="),
        ("b", "1970-01-01T00:00:00.000+00:00 to 1970-01-01T00:01:00.000+00:00", {"n": 3}),
    ]
    assert found.more
    assert [(row["key"], row["state"]) for row in found_of(answers, 9).rows][-1] == ("c", "row")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateWorker]:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setattr(query_watch, "EVERY_S", 0.01)
    with state_workers(1) as workers:
        workers[0].world.put("k1", {"n": 1})
        workers[0].announce(tmp_path / "run")
        # A process that runs tests for another one may ignore Ctrl-C.
        former = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield workers[0]
        finally:
            signal.signal(signal.SIGINT, former)


def test_the_command_prints_changes_until_it_is_interrupted(
    shop: StateWorker, capfd: pytest.CaptureFixture[str]
) -> None:
    def grows_and_ends(target: str) -> None:
        if len(shop.asked) == 4:
            shop.world.put("k1", {"n": 2})
        if len(shop.asked) == 6:
            os.kill(os.getpid(), signal.SIGINT)

    shop.fault = grows_and_ends
    assert main(["query", "shop", "k1", "nobody", "--watch", "--json"]) == 0
    printed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [[row["value"] for row in each["rows"]] for each in printed] == [[1], [2]]
    for each in printed:
        ANSWERS["query"].validate_python(each, strict=True)
        assert each["places"] == [{"partition": 0, "slot": "0", "inputs": {"orders": 7}}]
    shop.asked.clear()
    assert main(["query", "shop", "k1", "--watch"]) == 0
    out = capfd.readouterr().out
    assert "k1" in out
    assert "orders 7" in out


@pytest.mark.parametrize("words", [["--all"], ["--prefix", "k"], [], ["k1", "--internals"]])
def test_only_keys_can_be_watched(shop: StateWorker, capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["query", "shop", *words, "--watch"]) == 3
    assert "`holdfast query shop KEY --watch`" in capfd.readouterr().err
    assert shop.asked == []
