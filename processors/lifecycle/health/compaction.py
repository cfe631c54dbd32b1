"""Judges whether the broker compacts a changelog. The functions are pure: they get facts and return problems.

Invariants:
    - Nothing is changed. Each problem names the action for an operator.
    - An open transaction alone is no problem, because exactly-once processing opens transactions all the time. It is a
      problem if the last stable offset has not moved for ``patience_s`` seconds.
    - A number that could not be read is unknown. It is not judged, and never counts as good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from holdfast.infra.kafka.inspection.hanging_transactions import OpenTransaction, TransactionState, state_of
from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.changelog.config import drift, durability

#: Maximum seconds for which the last stable offset may stay below the end without moving. After this time, the
#: transaction that blocks the last stable offset is reported. The broker ends the transaction of a killed processor
#: earlier: after the transaction timeout plus the interval of its checks.
PATIENCE_S = 30.0
#: Maximum number of offsets between start and end of one partition; a larger changelog takes minutes to restore. Not
#: checked if the number of records was estimated, because not every offset has a record.
MAX_SPAN = 50_000_000
#: Maximum seconds that a restore of all state should take.
RESTORE_TARGET_S = 300.0
#: Assumed records per second that one worker restores, if no restore was measured: half the rate of a slow disk.
ASSUMED_RECORDS_PER_S = 200_000.0
#: A partition is reported if it has more records than this factor times the result of ``records_allowed``.
BOUND_FACTOR = 1.3
#: A partition with fewer records than this number is never reported as too large.
RECORDS_FEW = 100_000
#: Maximum size of a store on disk: the bytes of its live entries times the first number, plus the second number.
AMPLIFICATION, STORE_BYTES_FEW = 2.0, 64 * 2**20
#: ``max.compaction.lag.ms`` is reported if it is more than this multiple of the value that the application requests.
LAG_FACTOR = 24

Kind = Literal[
    "absent", "drift", "copies", "open", "hanging", "overdue", "bound", "segment", "lag", "span", "restore", "amplified"
]


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """Offsets, sizes and samples of one changelog partition; None for values that could not be read.

    Args:
        partition: The partition's number.
        start: The first offset that still exists.
        last_stable: The last stable offset.
        high_watermark: The end offset, including records of open transactions.
        stood_still_s: Seconds during which ``last_stable`` stayed below the end without moving.
        open: The open transactions on the partition.
        size_bytes: Size on the broker's disk.
        records: Number of records, estimated from samples at a few offsets.
        keys: Number of keys in the state of this partition, estimated by its worker.
        young: Number of offsets younger than ``min.compaction.lag.ms``, which the broker does not compact yet.
        tested: Number of old records in the samples.
        overdue: Number of ``tested`` records that compaction should have removed, because they were overwritten long
            ago.
        oldest_s: Age of the first record, seconds.
    """

    partition: int
    start: int
    last_stable: int
    high_watermark: int
    stood_still_s: float = 0.0
    open: tuple[OpenTransaction, ...] = ()
    size_bytes: int | None = None
    records: int | None = None
    keys: int | None = None
    young: int | None = None
    tested: int = 0
    overdue: int = 0
    oldest_s: float | None = None

    @property
    def span(self) -> int:
        """Number of offsets between start and end of the partition, which is at least the number of its records."""
        return self.high_watermark - self.start


@dataclass(frozen=True, slots=True)
class RestoreRate:
    """Records per second that one worker restores, and the number of workers that restore in parallel."""

    records_per_s: float
    workers: int = 1
    measured: bool = True


@dataclass(frozen=True, slots=True)
class StoreSpace:
    """Size of the local stores of one changelog, summed over all tasks: bytes on disk, and bytes of live entries."""

    size_bytes: int
    live_bytes: int

    @property
    def amplification(self) -> float:
        """Bytes on disk for each byte of live entries."""
        return self.size_bytes / max(1, self.live_bytes)


@dataclass(frozen=True, slots=True)
class CompactionFacts:
    """The offsets, sizes and settings of a changelog in the cluster; ``config`` is None if the topic does not exist.

    ``unknown`` has a sentence for each fact that could not be read.
    """

    topic: str
    config: Mapping[str, str] | None
    partitions: tuple[PartitionSpan, ...]
    replication: int | None = None
    brokers: int | None = None
    rate: RestoreRate | None = None
    space: StoreSpace | None = None
    unknown: tuple[str, ...] = ()

    @property
    def span(self) -> int:
        """Number of offsets between start and end, summed over all partitions."""
        return sum(part.span for part in self.partitions)

    @property
    def records(self) -> int | None:
        """Estimated number of records of all partitions; None if the number of one partition is unknown."""
        known = [part.records for part in self.partitions if part.records is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def size_bytes(self) -> int | None:
        """Bytes on disk of all partitions; None if the size of one partition is unknown."""
        known = [part.size_bytes for part in self.partitions if part.size_bytes is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def restore_s(self) -> float | None:
        """Estimated seconds for a restore of all partitions.

        If the number of records is unknown, offsets are used, which give an upper bound.
        """
        if self.rate is None or self.config is None:
            return None
        records = self.span if self.records is None else self.records
        return records / (self.rate.records_per_s * max(1, min(self.rate.workers, len(self.partitions))))


@dataclass(frozen=True, slots=True)
class CompactionProblem:
    """One problem of a changelog: the fault, the action, the numbers, and the command that repairs it."""

    kind: Kind
    sentence: str
    action: str
    command: str = ""
    partition: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The fault, the action and the command as one text."""
        return f"{self.sentence} {self.action}" + (f" Remedy: `{self.command}`" if self.command else "")


def judge_compaction(  # tidy: allow-wide because each parameter is a separate limit
    expected: TopicSpec,
    facts: CompactionFacts,
    *,
    processor: str = "",
    patience_s: float = PATIENCE_S,
    max_span: int = MAX_SPAN,
    restore_target_s: float = RESTORE_TARGET_S,
) -> tuple[CompactionProblem, ...]:
    """The problems of a changelog; empty if the changelog is healthy.

    Args:
        expected: The topic as the application defines it.
        facts: The topic as it is in the cluster.
        processor: Name of the processor, for the commands in the problems.
        patience_s: Maximum seconds for which the last stable offset may stay unchanged; default ``PATIENCE_S``.
        max_span: Maximum offsets of one partition; default ``MAX_SPAN``.
        restore_target_s: Maximum seconds for a restore of all state; default ``RESTORE_TARGET_S``.
    """
    name = processor or "<processor>"
    if facts.config is None:
        return (
            CompactionProblem(
                "absent",
                f"Topic {facts.topic} is missing.",
                "Materialise its asset to create it, or run the command.",
                f"holdfast apply provision {name}",
            ),
        )
    config = facts.config
    found = [*_drifted(expected, config, name), *_copies(facts), *_lag(expected, facts.topic, config)]
    for part in facts.partitions:
        blocked = list(_in_the_way(facts, part, patience_s)) if part.stood_still_s >= patience_s else []
        found += blocked
        found += _not_compacted(facts.topic, config, part, explained=bool(blocked or found))
        if part.records is None and part.span > max_span:
            found.append(
                CompactionProblem(
                    "span",
                    f"Partition {part.partition} spans {part.span} offsets, expected at most {max_span}.",
                    "Check the broker's log cleaner, and `min.cleanable.dirty.ratio` and `segment.ms` of the topic.",
                    partition=part.partition,
                    numbers={"offset_span": part.span},
                )
            )
    return (*found, *_restore(facts, restore_target_s), *_space(facts, name))


def _drifted(expected: TopicSpec, config: Mapping[str, str], name: str) -> Iterator[CompactionProblem]:
    for entry, value in drift(expected.config, config).items():
        yield CompactionProblem(
            "drift",
            f"{entry} is {config.get(entry, 'unset')}, expected {value}.",
            "Materialise the changelog asset to repair it, or run the command.",
            f"holdfast apply provision {name}",
        )


def _copies(facts: CompactionFacts) -> Iterator[CompactionProblem]:
    if facts.brokers is None or facts.replication is None:
        return
    wanted = durability(facts.brokers)
    if facts.replication < wanted.replication:
        yield CompactionProblem(
            "copies",
            f"{facts.topic} has {facts.replication} copies, expected {wanted.replication} ({wanted.why}).",
            "Add copies with `kafka-reassign-partitions.sh`; the processor can run meanwhile.",
            numbers={"replication": facts.replication, "brokers": facts.brokers},
        )


def _lag(expected: TopicSpec, topic: str, config: Mapping[str, str]) -> Iterator[CompactionProblem]:
    entry = "min.compaction.lag.ms"
    seen, asked = _number(config, entry), _number(expected.config, entry)
    if seen is not None and asked is not None and seen > max(asked, 1) * LAG_FACTOR:
        yield CompactionProblem(
            "lag",
            f"{entry} is {seen / 3.6e6:.0f} h, expected {asked / 3.6e6:.0f} h; younger records are not compacted.",
            "A repair never shortens it, because it keeps more. Set it lower unless another reader needs it.",
            f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {entry}={asked:.0f}",
            numbers={"min_compaction_lag_s": seen / 1000},
        )


def _in_the_way(facts: CompactionFacts, part: PartitionSpan, patience_s: float) -> Iterator[CompactionProblem]:
    """The problems of partitions whose last stable offset a transaction blocks.

    Records after the last stable offset are not compacted, and a consumer that reads committed records does not get
    them.
    """
    where = (
        f"Partition {part.partition}: the last stable offset stayed at {part.last_stable}, below the end at "
        f"{part.high_watermark}, for {part.stood_still_s:.0f} s, and nothing behind it is compacted or read."
    )
    if not part.open:
        yield CompactionProblem(
            "hanging",
            f"{where} A transaction is open.",
            "Find it with `kafka-transactions.sh find-hanging`. Abort it, unless a program holds it on purpose.",
            partition=part.partition,
            numbers={"stood_still_s": part.stood_still_s},
        )
    for each in part.open:
        meaning = state_of(each)
        abort = (
            f"kafka-transactions.sh abort --topic {facts.topic} --partition {part.partition} "
            f"--start-offset {each.start_offset}"
        )
        sentence, action = transaction_in_words(each, meaning)
        yield CompactionProblem(
            "open" if meaning == "open" else "hanging",
            f"{where} {sentence}",
            action,
            "" if meaning == "open" else abort,
            part.partition,
            {"open_for_s": each.open_for_s, "since_offset": each.start_offset},
        )


def transaction_in_words(transaction: OpenTransaction, meaning: TransactionState) -> tuple[str, str]:
    """Two texts about a transaction that blocks the last stable offset: the known facts, and the action."""
    match meaning:
        case "hanging":
            return (
                f"A transaction hangs, {transaction.sentence}; no coordinator knows it, so it stays until it is "
                "aborted.",
                "Abort it; its records were never committed.",
            )
        case "open":
            limit = "" if transaction.timeout_s is None else f" of {transaction.timeout_s:.0f} s"
            return (
                f"A transaction is {transaction.sentence}.",
                f"Check the program of that producer. Its coordinator ends the transaction after its timeout{limit}.",
            )
        case "unexplained":
            return (
                f"A transaction is {transaction.sentence}; no coordinator reports it, but it may still end by its "
                "timeout.",
                "Wait until it is older than `transaction.max.timeout.ms`, or grant this client `Describe` on "
                "transactional ids to see its producer. Abort it if it has none.",
            )


def _not_compacted(
    topic: str, config: Mapping[str, str], part: PartitionSpan, *, explained: bool
) -> Iterator[CompactionProblem]:
    """The problems of a partition that has overdue records, or more records than its configuration allows.

    An overdue record was overwritten long ago, but compaction has not removed it. ``explained`` is true if another
    problem of the topic already explains the additional records. The action is then to repair that problem first.
    """
    cleaner = (
        "Repair the problem above first; it blocks compaction."
        if explained
        else "The topic blocks nothing, so the broker's log cleaner is late or its thread died. Check "
        "`DeadThreadCount` and `time-since-last-run-ms` of `kafka.log`, and restart that broker."
    )
    open_segment = _open_segment(config, part)
    if open_segment is not None:
        yield open_segment
        cleaner = "Repair the open segment first; it blocks compaction."
    if part.overdue:
        share = part.overdue / max(1, part.tested)
        yield CompactionProblem(
            "overdue",
            f"Partition {part.partition}: {part.overdue} of {part.tested} old records in a sample ({share:.0%}) were "
            "overwritten longer ago than `max.compaction.lag.ms` and `segment.ms`, but still exist.",
            cleaner,
            partition=part.partition,
            numbers={"overdue_records": part.overdue, "tested_records": part.tested},
        )
    allowed = records_allowed(config, part)
    if allowed is not None and part.records is not None and part.records > max(RECORDS_FEW, allowed * BOUND_FACTOR):
        yield CompactionProblem(
            "bound",
            f"Partition {part.partition} has about {part.records} records for {part.keys} keys; expected at most "
            f"{allowed:.0f} with its configuration.",
            cleaner,
            partition=part.partition,
            numbers={"records": part.records, "records_allowed": allowed, "keys": part.keys or 0},
        )


def records_allowed(config: Mapping[str, str], part: PartitionSpan) -> float | None:
    """Maximum number of records that a partition may have with its configuration; None if a needed fact is unknown.

    The maximum is the number of keys, plus the uncompacted records that the dirty ratio allows. The records of one open
    segment, and the records younger than ``min.compaction.lag.ms``, are added.
    """
    if part.keys is None or part.records is None or part.size_bytes is None or part.young is None:
        return None
    ratio = min(0.99, float(config.get("min.cleanable.dirty.ratio", "0.5")))
    segment = _number(config, "segment.bytes") or 2**30
    record_bytes = max(1.0, part.size_bytes / max(1, part.records))
    return part.keys / (1 - ratio) + segment / record_bytes + part.young


def _open_segment(config: Mapping[str, str], part: PartitionSpan) -> CompactionProblem | None:
    """Returns a problem if all records are in one open segment, because Kafka never compacts it; otherwise None."""
    bytes_max, ms_max = _number(config, "segment.bytes"), _number(config, "segment.ms")
    lag_max = _number(config, "max.compaction.lag.ms")
    if part.size_bytes is None or part.oldest_s is None or part.keys is None or bytes_max is None or ms_max is None:
        return None
    closes_s = min(ms_max, lag_max if lag_max is not None else ms_max) / 1000
    many = (part.records or part.span) > max(RECORDS_FEW, 2 * part.keys)
    if not many or part.size_bytes >= bytes_max or part.oldest_s >= closes_s:
        return None
    return CompactionProblem(
        "segment",
        f"Partition {part.partition}: all {part.size_bytes} bytes are in one segment that is still open "
        f"(`segment.bytes` {bytes_max:.0f}, `segment.ms` {ms_max:.0f}), and Kafka never compacts an open segment.",
        "Set `segment.bytes` or `segment.ms` lower in `changelog_config` of the application, then run "
        "`holdfast apply provision PROCESSOR`.",
        partition=part.partition,
        numbers={"size_bytes": part.size_bytes, "oldest_s": part.oldest_s},
    )


def _restore(facts: CompactionFacts, target_s: float) -> Iterator[CompactionProblem]:
    seconds, rate = facts.restore_s, facts.rate
    if seconds is None or rate is None or seconds <= target_s:
        return
    source = "measured" if rate.measured else "assumed: no restore was measured yet"
    count = f"{facts.span} offsets" if facts.records is None else f"about {facts.records} records"
    yield CompactionProblem(
        "restore",
        f"A restore of {facts.topic} without a checkpoint would take {seconds:.0f} s, the target is {target_s:.0f} s "
        f"({count} at {rate.records_per_s:.0f} per second and worker, {source}, {rate.workers} workers).",
        "Keep checkpoints on, so that only a tail is replayed. Otherwise keep standbys, add workers, or raise "
        "`HOLDFAST_RESTORE_TARGET_S`.",
        numbers={"restore_s": seconds, "target_s": target_s},
    )


def _space(facts: CompactionFacts, name: str) -> Iterator[CompactionProblem]:
    space = facts.space
    if space is None or space.size_bytes <= AMPLIFICATION * space.live_bytes + STORE_BYTES_FEW:
        return
    yield CompactionProblem(
        "amplified",
        f"The local stores take {space.size_bytes} bytes for {space.live_bytes} live bytes "
        f"({space.amplification:.1f} times).",
        "Let their owners rewrite them; they read no input meanwhile.",
        f"holdfast apply compact {name}",
        numbers={"store_bytes": space.size_bytes, "store_live_bytes": space.live_bytes},
    )


def _number(config: Mapping[str, str], entry: str) -> float | None:
    try:
        return float(config[entry])
    except (KeyError, ValueError):
        return None
