"""A processor with two streams of different partition counts.

Verbs (operator commands) ask each store only for its own partitions.
"""

from __future__ import annotations

import pytest

from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.lifecycle.plans.requests import Clear, Keys
from tests.parts import operated as operating
from tests.parts.operated import Operated

WIDE = 5
SECOND_STREAM = """
second = application.dataframe(application.topic("{group}-wide"))
second.apply(count, stateful=True, store="wide")
"""


@pytest.fixture(autouse=True)
def _two_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating, "DEFINITION", operating.DEFINITION + SECOND_STREAM)


@pytest.mark.thorough
def test_keys_of_both_stores_are_counted_exported_and_cleared(operated: Operated) -> None:
    operated.topics.create(TopicSpec(f"{operated.group}-wide", WIDE, 1))
    operated.bring_up()
    operated.feed(keys=5, each=2)
    operated.feed(keys=5, each=2, topic=f"{operated.group}-wide")
    operated.processed(20)
    plan = operated.verbs.plan(Clear(operated.group, (), Keys(("key-1",))))
    assert plan.keys == 2
    done = operated.verbs.apply(plan, confirmed=plan.hash)
    assert [note.units for note in done.notes] == [1.0, 1.0, 1.0, 1.0]
    assert {store: operated.client.count(store, all=True)["keys"] for store in ("counts", "wide")} == {
        "counts": 4,
        "wide": 4,
    }
