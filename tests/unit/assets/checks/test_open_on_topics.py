"""A topic that cannot be inspected does not hide an open transaction on another topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.assets.checks import topics
from holdfast.infra.kafka.errors import AccessRefused, BrokerUnreachable, KafkaFailed
from holdfast.infra.kafka.inspection.hanging_transactions import OpenTransaction
from holdfast.infra.kafka.records import Partition


class InspectorThatFails:
    """Raises an error for the topics in ``failures``, and reports an open transaction on every other topic."""

    failures: dict[str, KafkaFailed] = {}  # noqa: RUF012

    def __init__(self, bootstrap: str, config: Any) -> None:
        self.asked: list[str] = []

    def __enter__(self) -> InspectorThatFails:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def open_transactions(self, topic: str, numbers: Sequence[int]) -> tuple[OpenTransaction, ...]:
        if topic in self.failures:
            raise self.failures[topic]
        return tuple(OpenTransaction(Partition(topic, number), 1, 0, 0, 9.0) for number in numbers)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(AccessRefused("no", action="ask"), ["a", "c"]), (BrokerUnreachable("away", action="wait"), ["a"])],
)
def test_a_refused_topic_hides_no_other_and_an_absent_broker_ends_the_look(
    failure: KafkaFailed, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "Inspector", InspectorThatFails)
    monkeypatch.setattr(InspectorThatFails, "failures", {"b": failure})
    found = topics.open_on({"a": [0], "b": [0], "c": [0]}, "localhost:1", {})
    assert [place.topic for place in found] == expected
