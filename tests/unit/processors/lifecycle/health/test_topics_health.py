"""A transaction that blocks readers of a changelog counts as hanging if it is older than the brokers' own limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.infra.kafka.inspection.hanging_transactions import OpenTransaction
from holdfast.infra.kafka.records import Partition, TopicSpec
from holdfast.processors.engine.topology import ChangelogSpec
from holdfast.processors.lifecycle.health.topics import HeldPartition, judge_transactions

PLACE = Partition("p-s-changelog", 0)
UNKNOWN = OpenTransaction(PLACE, 7, 1, 40, since_write_s=2_000.0)


@pytest.mark.parametrize(("limit_s", "hangs"), [(900.0, True), (1_900.0, True), (7_200.0, False)])
def test_a_transaction_hangs_when_it_is_older_than_the_brokers_allow(limit_s: float, hangs: bool) -> None:
    held = HeldPartition(PLACE, 40, 90, 30.0, (replace(UNKNOWN, max_timeout_s=limit_s),))
    finding = judge_transactions("p", ChangelogSpec("s", TopicSpec(PLACE.topic)), [held])
    assert "`holdfast apply compact p`" in (finding.action or "")
    assert ("A transaction hangs" in finding.sentence) is hangs
