"""Compaction: whether a changelog is kept compact, as state needs it. Facts are read, a pure function decides.

Invariants:
    - Reading only; what to do is said, and done by whoever reads it.
    - A transaction counts as hanging only when the last stable offset stood still for the whole patience: under
      exactly-once processing an open transaction is the normal case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infra.kafka.records import TopicSpec
from infra.kafka.topics import Topics

#: How long the last stable offset may stand still below the end before a transaction counts as hanging, seconds:
#: longer than the broker takes to end what a killed processor left open (its timeout and the broker's next look).
PATIENCE_S = 30.0
POLL_S = 0.5
#: Offsets of one partition between start and end; above, restoring takes minutes and compaction should be looked at.
MAX_SPAN = 50_000_000


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """One partition's offsets; ``stood_still_s`` is how long ``last_stable`` was seen to stay below the end."""

    partition: int
    start: int
    last_stable: int
    high_watermark: int
    stood_still_s: float = 0.0

    @property
    def span(self) -> int:
        """Offsets between start and end: at least as many as there are records."""
        return self.high_watermark - self.start


@dataclass(frozen=True, slots=True)
class CompactionFacts:
    """A changelog as the cluster has it; ``config`` is None when the topic is not there."""

    topic: str
    config: Mapping[str, str] | None
    partitions: tuple[PartitionSpan, ...]

    @property
    def span(self) -> int:
        """Offsets between start and end of all partitions."""
        return sum(part.span for part in self.partitions)


@dataclass(frozen=True, slots=True)
class CompactionProblem:
    """Something to look at; ``kind`` is absent, drift, span or hanging."""

    kind: str
    sentence: str
    action: str


def judge_compaction(
    expected: TopicSpec, facts: CompactionFacts, *, patience_s: float = PATIENCE_S, max_span: int = MAX_SPAN
) -> tuple[CompactionProblem, ...]:
    """What is wrong with a changelog; empty when nothing is."""
    if facts.config is None:
        return (
            CompactionProblem("absent", f"Topic {facts.topic} is not there.", "Materialise its asset to create it."),
        )
    problems = []
    for entry, value in expected.config.items():
        seen = facts.config.get(entry, "unset")
        if seen != value:
            problems.append(
                CompactionProblem(
                    "drift", f"{entry} is {seen}, expected {value}.", "Materialise the changelog asset to repair it."
                )
            )
    for part in facts.partitions:
        if part.last_stable < part.high_watermark and part.stood_still_s >= patience_s:
            problems.append(
                CompactionProblem(
                    "hanging",
                    f"Partition {part.partition}: the last stable offset stood at {part.last_stable}, below the end "
                    f"at {part.high_watermark}, for {part.stood_still_s:.0f} s: a transaction is open, and nothing "
                    "behind it is compacted or read.",
                    "Find it with `kafka-transactions.sh find-hanging` and abort it, unless a producer of another "
                    "program holds it on purpose.",
                )
            )
        if part.span > max_span:
            problems.append(
                CompactionProblem(
                    "span",
                    f"Partition {part.partition} spans {part.span} offsets, expected at most {max_span}.",
                    "Look at the broker's log cleaner, and at min.cleanable.dirty.ratio and segment.ms of the topic.",
                )
            )
    return tuple(problems)


def read_compaction(
    topics: Topics,
    topic: str,
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
) -> CompactionFacts:
    """The facts of one changelog; looks again, up to ``patience_s`` seconds, while a transaction is open.

    Raises:
        infra.kafka.errors.KafkaFailed: The cluster refused or did not answer.
    """
    described = topics.describe([topic]).get(topic)
    if described is None:
        return CompactionFacts(topic, None, ())
    starts = topics.start_offsets(topic)
    began = clock()
    # The stable end is read before the high watermark: what is committed in between is never taken for open.
    first = topics.end_offsets(topic, committed=True)
    ends = topics.end_offsets(topic, committed=False)
    still = {number for number, stable in first.items() if stable < ends[number]}
    latest = dict(first)
    while still and clock() - began < patience_s:
        time.sleep(POLL_S)
        latest = topics.end_offsets(topic, committed=True)
        still = {number for number in still if latest[number] == first[number]}
    waited = clock() - began
    spans = tuple(
        PartitionSpan(number, starts.get(number, 0), latest[number], end, waited if number in still else 0.0)
        for number, end in sorted(ends.items())
    )
    return CompactionFacts(topic, described.config, spans)
