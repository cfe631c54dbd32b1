"""Compaction: whether a changelog is kept compact, as state needs it. Facts in, problems out; nothing is read here.

Invariants:
    - Reading only; what to do is said with each problem, and done by whoever reads it.
    - A transaction counts as standing in the way only when the last stable offset stood still for the whole patience:
      under exactly-once processing an open transaction is the normal case.
    - What is not known is not judged: a number that could not be had never passes for a good one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from holdfast.infra.kafka.inspection import MAX_TIMEOUT_S, OpenTransaction, standing
from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.changelog.config import drift, durability

#: How long the last stable offset may stand still below the end before a transaction counts as in the way, seconds:
#: longer than the broker takes to end what a killed processor left open (its timeout and the broker's next look).
PATIENCE_S = 30.0
#: Offsets of one partition between start and end; above, restoring takes minutes and compaction should be looked at.
#: Offsets bound records from above only: not judged where records were estimated.
MAX_SPAN = 50_000_000
#: A restore of all state may take so many seconds.
RESTORE_TARGET_S = 300.0
#: Records a second that one worker restores, where nothing was measured: half of what a slow disk did.
ASSUMED_RECORDS_PER_S = 200_000.0
#: A partition may have so many times the records that its keys, its open segment and its lag explain.
BOUND_FACTOR = 1.3
#: Fewer records than this are never too many.
RECORDS_FEW = 100_000
#: A store may take so many times the bytes of what lives in it, and so many bytes in any case.
AMPLIFICATION, STORE_BYTES_FEW = 2.0, 64 * 2**20
#: A lag before compaction above this many times what was asked for is worth a word.
LAG_FACTOR = 24

Kind = Literal[
    "absent", "drift", "copies", "open", "hanging", "overdue", "bound", "segment", "lag", "span", "restore", "amplified"
]


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """One partition; what could not be had is None.

    Args:
        partition: Its number.
        start: The first offset that is still there.
        last_stable: The last stable offset.
        high_watermark: The end.
        stood_still_s: How long ``last_stable`` was seen to stay below the end.
        open: The transactions that are open on it.
        size_bytes: Its size on disk.
        records: How many records there are, estimated from a few places.
        keys: How many keys live in its state, as its worker estimates.
        young: Offsets younger than the lag before compaction.
        tested: Old records that were looked at.
        overdue: Of those, how many were overwritten so long ago that they should be gone.
        oldest_s: The age of the first record.
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
        """Offsets between start and end: at least as many as there are records."""
        return self.high_watermark - self.start


@dataclass(frozen=True, slots=True)
class RestoreRate:
    """Records a second that one worker restores, and how many workers share the work."""

    records_per_s: float
    workers: int = 1
    measured: bool = True


@dataclass(frozen=True, slots=True)
class StoreSpace:
    """The local stores that a changelog's state is in, over all tasks: bytes on disk, and bytes that live."""

    size_bytes: int
    live_bytes: int

    @property
    def amplification(self) -> float:
        """Bytes on disk for each byte that lives."""
        return self.size_bytes / max(1, self.live_bytes)


@dataclass(frozen=True, slots=True)
class CompactionFacts:
    """A changelog as the cluster has it; ``config`` is None when the topic is not there.

    ``unknown`` has a sentence for each fact that could not be had.
    """

    topic: str
    config: Mapping[str, str] | None
    partitions: tuple[PartitionSpan, ...]
    replication: int | None = None
    brokers: int | None = None
    rate: RestoreRate | None = None
    space: StoreSpace | None = None
    max_timeout_s: float = MAX_TIMEOUT_S
    unknown: tuple[str, ...] = ()

    @property
    def span(self) -> int:
        """Offsets between start and end of all partitions."""
        return sum(part.span for part in self.partitions)

    @property
    def records(self) -> int | None:
        """Records of all partitions, estimated; None when one is not known."""
        known = [part.records for part in self.partitions if part.records is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def size_bytes(self) -> int | None:
        """Bytes on disk of all partitions; None when one is not known."""
        known = [part.size_bytes for part in self.partitions if part.size_bytes is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def restore_s(self) -> float | None:
        """Seconds that a restore of everything takes; by offsets, which bound records, where those are not known."""
        if self.rate is None or self.config is None:
            return None
        records = self.span if self.records is None else self.records
        return records / (self.rate.records_per_s * max(1, min(self.rate.workers, len(self.partitions))))


@dataclass(frozen=True, slots=True)
class CompactionProblem:
    """Something to look at: what is seen, what to do, the numbers behind it, and the command that mends it."""

    kind: Kind
    sentence: str
    action: str
    command: str = ""
    partition: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All of it, for people."""
        return f"{self.sentence} {self.action}" + (f" Remedy: `{self.command}`" if self.command else "")


def judge_compaction(  # tidy: allow-wide because each is a limit of its own
    expected: TopicSpec,
    facts: CompactionFacts,
    *,
    processor: str = "",
    patience_s: float = PATIENCE_S,
    max_span: int = MAX_SPAN,
    restore_target_s: float = RESTORE_TARGET_S,
) -> tuple[CompactionProblem, ...]:
    """What is wrong with a changelog; empty when nothing is.

    Args:
        expected: The changelog as it should be.
        facts: As it is.
        processor: Whose it is, for the commands.
        patience_s: See ``PATIENCE_S``.
        max_span: See ``MAX_SPAN``.
        restore_target_s: See ``RESTORE_TARGET_S``.
    """
    name = processor or "<processor>"
    if facts.config is None:
        return (
            CompactionProblem(
                "absent",
                f"Topic {facts.topic} is not there.",
                "Materialise its asset to create it.",
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
                    "Look at the broker's log cleaner, and at min.cleanable.dirty.ratio and segment.ms of the topic.",
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
            "Materialise the changelog asset to repair it.",
            f"holdfast apply provision {name}",
        )


def _copies(facts: CompactionFacts) -> Iterator[CompactionProblem]:
    if facts.brokers is None or facts.replication is None:
        return
    wanted = durability(facts.brokers)
    if facts.replication < wanted.replication:
        yield CompactionProblem(
            "copies",
            f"{facts.topic} has {facts.replication} copies, {wanted.replication} would do ({wanted.why}).",
            "Give its partitions more copies with `kafka-reassign-partitions.sh`; nothing has to be stopped for it.",
            numbers={"replication": facts.replication, "brokers": facts.brokers},
        )


def _lag(expected: TopicSpec, topic: str, config: Mapping[str, str]) -> Iterator[CompactionProblem]:
    entry = "min.compaction.lag.ms"
    seen, asked = _number(config, entry), _number(expected.config, entry)
    if seen is not None and asked is not None and seen > max(asked, 1) * LAG_FACTOR:
        yield CompactionProblem(
            "lag",
            f"{entry} is {seen / 3.6e6:.0f} h, {asked / 3.6e6:.0f} h were asked for: nothing younger is compacted.",
            "It keeps more, so it is not changed by itself; set it lower unless another reader needs it.",
            f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {entry}={asked:.0f}",
            numbers={"min_compaction_lag_s": seen / 1000},
        )


def _in_the_way(facts: CompactionFacts, part: PartitionSpan, patience_s: float) -> Iterator[CompactionProblem]:
    """What holds the last stable offset: behind it nothing is compacted, and nothing is read."""
    where = (
        f"Partition {part.partition}: the last stable offset stood at {part.last_stable}, below the end at "
        f"{part.high_watermark}, for {part.stood_still_s:.0f} s: "
    )
    if not part.open:
        yield CompactionProblem(
            "hanging",
            f"{where}a transaction is open, and nothing behind it is compacted or read.",
            "Find it with `kafka-transactions.sh find-hanging` and abort it, unless a producer of another "
            "program holds it on purpose.",
            partition=part.partition,
            numbers={"stood_still_s": part.stood_still_s},
        )
    for each in part.open:
        meaning = standing(each, facts.max_timeout_s)
        numbers = {"open_for_s": each.open_for_s, "since_offset": each.start_offset}
        abort = (
            f"kafka-transactions.sh abort --topic {facts.topic} --partition {part.partition} "
            f"--start-offset {each.start_offset}"
        )
        if meaning == "open":
            limit = "" if each.timeout_s is None else f", which is after {each.timeout_s:.0f} s"
            yield CompactionProblem(
                "open",
                f"{where}a transaction is {each.sentence}; nothing behind it is compacted or read.",
                f"Its producer lives, or its coordinator will end it by its timeout{limit}: look at that program.",
                partition=part.partition,
                numbers=numbers,
            )
        elif meaning == "hanging":
            yield CompactionProblem(
                "hanging",
                f"{where}a transaction hangs, {each.sentence}; no coordinator knows it, so that it stays for ever.",
                "Abort it: what it wrote was never committed.",
                abort,
                part.partition,
                numbers,
            )
        else:
            yield CompactionProblem(
                "hanging",
                f"{where}a transaction is {each.sentence}; no coordinator tells of it, and it is too young to be given "
                "up.",
                "Wait until it is older than transaction.max.timeout.ms, or have this client the right Describe on "
                "transactional ids, to see whose it is. Then abort it if nobody's.",
                abort,
                part.partition,
                numbers,
            )


def _not_compacted(
    topic: str, config: Mapping[str, str], part: PartitionSpan, *, explained: bool
) -> Iterator[CompactionProblem]:
    """The two tests from outside, and what to make of them: blockers that were found come first."""
    cleaner = (
        "What was found above is in the way: mend that first."
        if explained
        else "Nothing of the topic stands in the way, so the broker's log cleaner is behind, or its thread died, which "
        "it does silently: look at DeadThreadCount and time-since-last-run-ms of kafka.log, and restart that broker."
    )
    open_segment = _open_segment(config, part)
    if open_segment is not None:
        yield open_segment
        cleaner = "Its one open segment is in the way: mend that first."
    if part.overdue:
        share = part.overdue / max(1, part.tested)
        yield CompactionProblem(
            "overdue",
            f"Partition {part.partition}: of {part.tested} old records looked at, {part.overdue} ({share:.0%}) were "
            "overwritten before max.compaction.lag.ms and a segment's time ago, and are still there.",
            cleaner,
            partition=part.partition,
            numbers={"overdue_records": part.overdue, "tested_records": part.tested},
        )
    allowed = records_allowed(config, part)
    if allowed is not None and part.records is not None and part.records > max(RECORDS_FEW, allowed * BOUND_FACTOR):
        yield CompactionProblem(
            "bound",
            f"Partition {part.partition} holds about {part.records} records for {part.keys} keys; compacted as it is "
            f"configured it would hold {allowed:.0f} at most.",
            cleaner,
            partition=part.partition,
            numbers={"records": part.records, "records_allowed": allowed, "keys": part.keys or 0},
        )


def records_allowed(config: Mapping[str, str], part: PartitionSpan) -> float | None:
    """How many records a partition may have that is compacted as configured; None when too little is known.

    Its keys, as many again as the dirty ratio lets wait, what fits the open segment, and what is younger than the lag.
    """
    if part.keys is None or part.records is None or part.size_bytes is None or part.young is None:
        return None
    ratio = min(0.99, float(config.get("min.cleanable.dirty.ratio", "0.5")))
    segment = _number(config, "segment.bytes") or 2**30
    record_bytes = max(1.0, part.size_bytes / max(1, part.records))
    return part.keys / (1 - ratio) + segment / record_bytes + part.young


def _open_segment(config: Mapping[str, str], part: PartitionSpan) -> CompactionProblem | None:
    """All records in the one segment that is still written to: never compacted, whatever the cleaner does."""
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
        f"Partition {part.partition}: all {part.size_bytes} bytes are in one segment that is still open (segment.bytes "
        f"{bytes_max:.0f}, segment.ms {ms_max:.0f}), and an open segment is never compacted.",
        "Set segment.bytes or segment.ms lower: changelog_config of the application, then provision.",
        partition=part.partition,
        numbers={"size_bytes": part.size_bytes, "oldest_s": part.oldest_s},
    )


def _restore(facts: CompactionFacts, target_s: float) -> Iterator[CompactionProblem]:
    seconds, rate = facts.restore_s, facts.rate
    if seconds is None or rate is None or seconds <= target_s:
        return
    source = "measured" if rate.measured else "assumed, as no restore was measured yet"
    count = f"{facts.span} offsets" if facts.records is None else f"about {facts.records} records"
    yield CompactionProblem(
        "restore",
        f"A restore of all of {facts.topic} from nothing would take {seconds:.0f} s ({count} at "
        f"{rate.records_per_s:.0f} a second and worker, {source}, {rate.workers} workers); the target is "
        f"{target_s:.0f} s.",
        "Keep checkpoints on, so that only a tail is replayed; or keep standbys, add workers, or raise "
        "HOLDFAST_RESTORE_TARGET_S.",
        numbers={"restore_s": seconds, "target_s": target_s},
    )


def _space(facts: CompactionFacts, name: str) -> Iterator[CompactionProblem]:
    space = facts.space
    if space is None or space.size_bytes <= AMPLIFICATION * space.live_bytes + STORE_BYTES_FEW:
        return
    yield CompactionProblem(
        "amplified",
        f"The local stores take {space.size_bytes} bytes for {space.live_bytes} that live "
        f"({space.amplification:.1f} times).",
        "Have their owner rewrite them; no input is read meanwhile.",
        f"holdfast apply compact {name}",
        numbers={"store_bytes": space.size_bytes, "store_live_bytes": space.live_bytes},
    )


def _number(config: Mapping[str, str], entry: str) -> float | None:
    try:
        return float(config[entry])
    except (KeyError, ValueError):
        return None
