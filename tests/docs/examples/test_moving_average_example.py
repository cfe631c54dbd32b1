"""Both ways of the moving average give the averages of plain Python, and cost the bytes that the page shows."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from holdfast import InMemoryCluster
from tests.docs.examples.loaded import EXAMPLES, example
from tests.mechanics.tiers import variants

PRICES = [(b"a", 10), (b"b", 7), *((b"a", 20 + number * number) for number in range(30)), (b"b", 8)]


def averages(step: str) -> list[tuple[bytes | None, float]]:
    module, cluster = example("moving_average"), InMemoryCluster()
    cluster.create_topic("trades")
    for key, price in PRICES:
        cluster.produce("trades", json.dumps({"price": price}).encode(), key)
    cluster.run(module.application(getattr(module, step), loglevel=None))
    return [(record.key, json.loads(record.value or b"")["average"]) for _, record in cluster.read("trades-averaged")]


def truth(over: int) -> list[tuple[bytes | None, float]]:
    seen: dict[bytes, list[int]] = {}
    made: list[tuple[bytes | None, float]] = []
    for key, price in PRICES:
        newest = seen.setdefault(key, [])
        newest.append(price)
        made.append((key, sum(newest[-over:]) / len(newest[-over:])))
    return made


@pytest.mark.parametrize("step", ["in_one_value", "in_members"])
def test_both_ways_give_the_averages_of_plain_python(step: str) -> None:
    over = example("moving_average").OVER
    assert averages(step) == truth(over)
    assert len([key for key, _ in PRICES if key == b"a"]) > over, "the window must be full"


def shown() -> list[list[int]]:
    """The rows of the page's table of bytes, as numbers."""
    text = (EXAMPLES / "moving-average.md").read_text(encoding="utf-8").partition("## Bytes")[2].partition("\n## ")[0]
    rows = [re.findall(r"[\d,]+", row) for row in text.splitlines() if re.match(r"\| [\d,]+ \|", row)]
    return [[int(number.replace(",", "")) for number in row] for row in rows]


def test_the_page_shows_all_loads() -> None:
    loads = [list(load) for load in example("moving_average").LOADS]
    assert [row[:4] for row in shown()] == loads


@pytest.mark.slow
@pytest.mark.parametrize("place", variants([1, 0, 2, 3]))
def test_the_bytes_of_the_page_are_those_of_a_run(place: int) -> None:
    module = example("moving_average")
    load = module.LOADS[place]
    costs: list[Any] = [module.cost(step, load) for step in (module.in_one_value, module.in_members)]
    assert [number for each in costs for number in each[:3]] == shown()[place][4:]


def test_the_program_prints_a_row_for_each_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = example("moving_average")
    monkeypatch.setattr(module, "cost", lambda step, load: module.Cost(1_234, 5, 6, 0.5))
    module.main()
    assert capsys.readouterr().out.count("1,234") == 2 * (len(module.LOADS) + 1)
