"""The verdict on a changelog's compaction.

It is decided from given facts (what was read of Kafka), without a cluster.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.infra.kafka.inspection.hanging_transactions import OpenTransaction
from holdfast.infra.kafka.records import Partition, TopicSpec
from holdfast.processors.engine.changelog.config import CHANGELOG_CONFIG
from holdfast.processors.lifecycle.health.compaction import (
    PATIENCE_S,
    CompactionFacts,
    CompactionProblem,
    PartitionSpan,
    RestoreRate,
    StoreSpace,
    judge_compaction,
)

EXPECTED = TopicSpec("p-s-changelog", 1, 1, dict(CHANGELOG_CONFIG))


def facts(*spans: PartitionSpan, **config: str) -> CompactionFacts:
    return CompactionFacts(EXPECTED.name, {**CHANGELOG_CONFIG, **config}, spans)


def kinds(seen: CompactionFacts, **limits: int) -> list[str]:
    return [problem.kind for problem in judge_compaction(EXPECTED, seen, **limits)]


def test_a_compacted_changelog_is_healthy() -> None:
    assert kinds(facts(PartitionSpan(0, 5, 100, 100))) == []


def test_a_missing_topic_is_told() -> None:
    assert kinds(CompactionFacts(EXPECTED.name, None, ())) == ["absent"]


def test_drift_tells_what_was_seen_and_expected() -> None:
    (problem,) = judge_compaction(EXPECTED, facts(**{"cleanup.policy": "delete"}))
    assert problem.kind == "drift"
    assert problem.sentence == "cleanup.policy is delete, expected compact."


def test_an_open_transaction_is_hanging_only_after_patience() -> None:
    assert kinds(facts(PartitionSpan(0, 0, 90, 100, stood_still_s=PATIENCE_S - 1))) == []
    assert kinds(facts(PartitionSpan(0, 0, 90, 100, stood_still_s=PATIENCE_S))) == ["hanging"]


def test_a_long_log_is_told_for_its_partition() -> None:
    seen = facts(PartitionSpan(0, 0, 10, 10), PartitionSpan(1, 0, 11, 11))
    assert kinds(seen, max_span=10) == ["span"]
    assert seen.span == 21


def problems(seen: CompactionFacts, **limits: float) -> tuple[CompactionProblem, ...]:
    return judge_compaction(EXPECTED, seen, processor="orders", **limits)  # type: ignore[arg-type]


def held(*transactions: OpenTransaction) -> CompactionFacts:
    return facts(PartitionSpan(0, 0, 90, 100, stood_still_s=PATIENCE_S, open=transactions))


OPEN = OpenTransaction(Partition(EXPECTED.name, 0), 7, 3, 90, since_write_s=40.0)


def test_an_open_transaction_is_told_with_its_producer_and_is_not_to_be_aborted() -> None:
    (problem,) = problems(held(replace(OPEN, transactional_id="billing", state="Ongoing", age_s=45.0, timeout_s=60.0)))
    assert problem.kind == "open"
    assert "open for 45 s by producer 7 (epoch 3) of billing since offset 90" in problem.sentence
    assert "after its timeout of 60 s" in problem.action
    assert problem.command == ""


def test_a_transaction_that_no_coordinator_knows_hangs_when_it_outlived_every_timeout() -> None:
    (problem,) = problems(held(replace(OPEN, since_write_s=2000.0)))
    assert problem.kind == "hanging"
    assert "no coordinator knows it" in problem.sentence
    assert problem.command == "kafka-transactions.sh abort --topic p-s-changelog --partition 0 --start-offset 90"
    (young,) = problems(held(OPEN))
    assert "it may still end by its timeout" in young.sentence
    (longer,) = problems(held(replace(OPEN, since_write_s=2000.0, max_timeout_s=7200.0)))
    assert "it may still end by its timeout" in longer.sentence


def test_problems_name_the_command_that_mends_them() -> None:
    (absent,) = problems(CompactionFacts(EXPECTED.name, None, ()))
    (drifted,) = problems(facts(**{"delete.retention.ms": "1000"}))
    assert (absent.command, drifted.command) == ("holdfast apply provision orders",) * 2
    assert drifted.text.endswith("Remedy: `holdfast apply provision orders`")


def test_what_keeps_more_is_no_drift_but_a_very_long_lag_is_told() -> None:
    assert problems(facts(**{"delete.retention.ms": "999999999", "min.compaction.lag.ms": "7200000"})) == ()
    (problem,) = problems(facts(**{"min.compaction.lag.ms": str(10 * 24 * 3_600_000)}))
    assert problem.kind == "lag"
    assert "is 240 h, expected 1 h" in problem.sentence
    assert problem.command.endswith("--add-config min.compaction.lag.ms=3600000")


def test_too_few_copies_are_told_where_there_are_brokers_for_more() -> None:
    seen = replace(facts(), replication=1, brokers=3)
    assert [problem.kind for problem in problems(seen)] == ["copies"]
    assert problems(replace(seen, brokers=1)) == ()
    assert problems(replace(seen, brokers=None)) == ()


def test_overwritten_records_that_should_be_gone_point_at_the_cleaner_unless_something_is_in_its_way() -> None:
    part = PartitionSpan(0, 0, 1000, 1000, tested=500, overdue=100)
    (problem,) = problems(facts(part))
    assert problem.kind == "overdue"
    assert "100 of 500 old records in a sample (20%)" in problem.sentence
    assert "DeadThreadCount" in problem.action
    assert problem.numbers == {"overdue_records": 100, "tested_records": 500}
    blocked = replace(part, stood_still_s=PATIENCE_S, last_stable=900)
    hanging, overdue = problems(facts(blocked))
    assert (hanging.kind, overdue.kind) == ("hanging", "overdue")
    assert "blocks compaction" in overdue.action


@pytest.mark.parametrize(("records", "kinds_told"), [(3_000_000, []), (8_000_000, ["bound"])])
def test_more_records_than_keys_segment_and_lag_explain_are_told(records: int, kinds_told: list[str]) -> None:
    # With records of 100 bytes, the check still accepts this sum: 1,342,177 records in the open segment, one for each
    # of 1,000,000 keys, 1,000,000 dirty (not compacted) records, and 500,000 younger than the compaction lag.
    part = PartitionSpan(
        0, 0, records, records, size_bytes=100 * records, records=records, keys=1_000_000, young=500_000
    )
    assert [problem.kind for problem in problems(facts(part))] == kinds_told


def test_without_knowing_keys_nothing_is_said_of_the_bound() -> None:
    part = PartitionSpan(0, 0, 9_000_000, 9_000_000, size_bytes=900_000_000, records=9_000_000, young=0)
    assert problems(facts(part)) == ()


def test_a_log_that_is_one_open_segment_is_told() -> None:
    part = PartitionSpan(0, 0, 9, 2_000_000, size_bytes=2 * 10**8, records=2_000_000, keys=10, oldest_s=90_000.0)
    huge = {"segment.bytes": str(2**30), "segment.ms": "604800000"}
    told = problems(facts(part, **huge))
    assert "segment" in [problem.kind for problem in told]
    assert "drift" in [problem.kind for problem in told]
    assert "one segment that is still open" in next(each.sentence for each in told if each.kind == "segment")
    assert "segment" not in [each.kind for each in problems(facts(replace(part, oldest_s=700_000.0), **huge))]


def test_a_restore_longer_than_its_target_is_predicted_from_records_and_rate() -> None:
    part = PartitionSpan(0, 0, 10**9, 10**9, records=60_000_000)
    seen = replace(facts(part, replace(part, partition=1)), rate=RestoreRate(100_000.0, workers=2))
    assert seen.restore_s == 600.0
    (problem,) = problems(seen)
    assert problem.kind == "restore"
    assert "about 120000000 records at 100000 per second and worker, measured, 2 workers" in problem.sentence
    assert problems(seen, restore_target_s=601.0) == ()
    assumed = replace(seen, rate=RestoreRate(100_000.0, workers=2, measured=False))
    assert "assumed" in problems(assumed)[0].sentence


def test_more_workers_than_partitions_restore_no_faster() -> None:
    part = PartitionSpan(0, 0, 1000, 1000, records=1000)
    assert replace(facts(part), rate=RestoreRate(100.0, workers=8)).restore_s == 10.0


def test_a_store_much_larger_than_what_lives_in_it_is_to_be_compacted_by_its_owner() -> None:
    seen = replace(facts(), space=StoreSpace(300 * 2**20, 100 * 2**20))
    (problem,) = problems(seen)
    assert (problem.kind, problem.command) == ("amplified", "holdfast apply compact orders")
    assert "(3.0 times)" in problem.sentence
    assert problems(replace(seen, space=StoreSpace(60 * 2**20, 2**20))) == (), "small ones are never worth it"
