"""In each row of the columns bench, both ways give the same results as plain Python. Times are not judged here."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.bench.asked import Asked
from tests.bench.column_steps import LOOP, Steps
from tests.bench.columns import ALL, Quix, measured, written
from tests.bench.stream import bodies

MADE = [(key, body) for _, key, body in bodies(700, 20)]


@pytest.mark.parametrize("steps", ALL, ids=[each.name for each in ALL])
def test_both_ways_have_one_result(steps: Steps) -> None:
    row = measured(steps, [body for _, body in MADE], [key for key, _ in MADE], 1, 0.0)
    assert row.columns_ns > 0
    assert row.hash != hashlib.sha256().hexdigest()[:16], "nothing came out"


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [LOOP, *ALL], ids=[LOOP.name, *(each.name for each in ALL)])
def test_quix_streams_has_the_same_result(steps: Steps, quix: Asked, tmp_path: Path) -> None:
    keys, raw = [key for key, _ in MADE], [body for _, body in MADE]
    row = measured(steps, raw, keys, 1, 0.0, Quix(quix, written(tmp_path / "messages", keys, raw)))
    assert row.quix_columns_ns
    assert row.quix_functions_ns
    fewer = written(tmp_path / "messages", keys[:350], raw[:350])
    with pytest.raises(AssertionError, match="other results"):
        measured(steps, raw, keys, 1, 0.0, Quix(quix, fewer))


def test_the_result_is_that_of_plain_python() -> None:
    totals: dict[str, list[float]] = {}
    digest = hashlib.sha256()
    for key, body in MADE:
        value = json.loads(body)
        if value["amount"] > 200 and value["currency"] != "CHF":
            of = totals.setdefault(value["user_id"], [])
            of.append(value["amount"] * 3)
            running = 0.0
            for each in of:
                running += each
            made = {"n": len(of), "total": running, "most": max(of)}
            digest.update(key + json.dumps(made, separators=(",", ":")).encode())
    [steps] = [each for each in ALL if each.name == "task: filter, column, aggregation"]
    row = measured(steps, [body for _, body in MADE], [key for key, _ in MADE], 1, 0.0)
    assert row.hash == digest.hexdigest()[:16]


def test_other_results_are_refused() -> None:
    [steps] = [each for each in ALL if each.name == "filter"]
    other = Steps("other", steps.columns, lambda sdf: sdf.filter(lambda value: value["amount"] > 501))
    with pytest.raises(AssertionError, match="other results"):
        measured(other, [body for _, body in MADE], [key for key, _ in MADE], 1, 0.0)
