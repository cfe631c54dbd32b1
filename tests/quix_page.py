"""Helpers for tests of the page quix-examples.md: they list the tests that it names, and run its examples."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import InMemoryCluster
from tests.window_apps import T, build, send

PAGE = Path(__file__).resolve().parent.parent / "docs" / "coming-from" / "quix-examples.md"

MINUTE, HOUR = 60_000, 3_600_000
#: A time in milliseconds that is a whole number of hours after 1970.
START = T // HOUR * HOUR
READINGS = [(100, {"celsius": 30}), (200, {"celsius": 29}), (300, {"celsius": 28})]


def listed_under(*headings: str, page: Path = PAGE) -> set[str]:
    """The names of the tests that the page lists in the sections with these headings."""
    sections = dict(
        re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    )
    return {name for heading in headings for name in re.findall(r"`(test_\w+)`", sections[heading])}


def results(cluster: InMemoryCluster, place: Callable[[Any], Any], messages: list[tuple[int, Any]]) -> Any:
    """Return the outputs of a step for these messages.

    Times of messages, window starts and window ends are in milliseconds after ``START``.
    """
    for at, value in messages:
        send(cluster, START - T + at, value)
    cluster.run(build(place))
    found = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    for each in found:
        each.update({name: each[name] - START for name in ("start", "end") if name in each})
    return found
