"""What is said of a changelog's compaction, from facts alone."""

from __future__ import annotations

from infra.kafka.records import TopicSpec
from processors.lifecycle.compaction import PATIENCE_S, CompactionFacts, PartitionSpan, judge_compaction
from processors.topology import CHANGELOG_CONFIG

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
