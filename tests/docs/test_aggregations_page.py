"""The page on aggregations names every aggregator. ``test_examples.py`` runs its example."""

from __future__ import annotations

from holdfast.processors.engine.aggregates.aggregation import AGGREGATORS
from tests.docs.pages import PROJECT

PAGE = PROJECT / "docs" / "aggregations.md"


def test_every_aggregator_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [made.__name__ for made in AGGREGATORS.values() if f"`{made.__name__}(" not in text] == []
