"""The cases of the bench, and the run of one contender in one case.

Invariants:
    - Every run has its own process, group, output topic, changelog and state folder, which are deleted afterwards.
    - A run counts only if its outputs equal those of plain Python: one for each message, with the same bits.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Literal

from holdfast.infra.kafka.embedded.broker import BrokerAddress
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from tests.bench import joins, windows
from tests.bench.contenders import Work, parse_last
from tests.bench.measured import RunWrong, Usage, run_measured
from tests.bench.outputs import WARM_AFTER, read_into, read_outputs
from tests.bench.peers import PROJECT, Contender
from tests.bench.seeding import fill, first_of_each_partition, seed
from tests.bench.stream import FIRST_TIMESTAMP_MS, PARTITIONS, SeededState, bodies, expected, hash_of

MILLION = 1_000_000
#: For the timeout of a run: the lowest rate (records per second) that a contender may have, and a minimum timeout in
#: seconds.
SLOWEST_RATE, PATIENCE_S = 2_000, 240.0


class Kind(Enum):
    """The kinds of measurements in the bench."""

    THROUGHPUT = "throughput"
    RESTORE = "restore"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class Case:
    """One workload.

    ``restore`` is the number of changelog records that exist before the start. With 0, the process starts without
    state.
    """

    name: str
    title: str
    kind: Kind
    count: int
    keys: int
    guarantee: Literal["exactly-once", "at-least-once"]
    commit_s: float
    restore: int = 0
    rate: int = 0
    counted_s: int = 0
    block_cache_mb: int = 0
    linger_ms: int = 50
    #: Whether the case has windows, with ``current`` or ``final`` results, instead of running totals. Empty: no
    #: windows.
    windows: windows.Emit = ""
    #: Whether the case has a join, or a count after a group-by, instead of running totals. Empty: neither of them.
    joins: joins.Joined = ""
    #: The contenders that run the case.
    contenders: tuple[str, ...] = ()
    #: Contenders that process only a part of the messages. Their rates stay comparable, and slow contenders take less
    #: time.
    parts: Mapping[str, float] = field(default_factory=dict)

    def of(self, contender: str) -> Case:
        """Return the case for this contender. It has fewer messages if the contender processes only a part."""
        part = self.parts.get(contender)
        if part is None:
            return self
        if self.kind is Kind.RESTORE:
            return replace(self, restore=max(2, int(self.restore * part)), keys=max(1, int(self.keys * part)))
        return replace(self, count=max(1, int(self.count * part)))

    @property
    def seeded(self) -> SeededState | None:
        return SeededState(self.restore, self.keys) if self.restore else None


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the bench's cases: messages, keys, records to restore, seconds."""

    messages: int
    restore: int
    cache_keys: int
    latency_s: int
    latency_rate: int
    few_keys: int = 10_000
    many_keys: int = 1_000_000
    #: A window holds 60,000 messages, so at least 60,000 messages are needed to close one.
    window_messages: int = 1_000_000


_ALL = ("floor", "ours", "ours-builtin", "quix", "streams")
_PEERS = ("ours", "ours-builtin", "quix", "streams")
_OURS = ("ours", "ours-builtin")
#: The contenders of each case. A peer (Quix Streams or Kafka Streams) runs only the cases in which a goal compares it
#: with the engine. So all cases together take little more than half an hour on two cores.
_THROUGHPUT: tuple[tuple[str, Literal["exactly-once", "at-least-once"], float, tuple[str, ...]], ...] = (
    ("few-eos-1s", "exactly-once", 1.0, _ALL),
    ("few-alo-1s", "at-least-once", 1.0, _ALL),
    ("few-eos-100ms", "exactly-once", 0.1, _PEERS),
    ("few-alo-100ms", "at-least-once", 0.1, _OURS),
    ("many-eos-1s", "exactly-once", 1.0, _PEERS),
    ("many-alo-1s", "at-least-once", 1.0, _OURS),
)
#: Kafka Streams needs a million messages with few keys until its hot code is compiled. With many keys it is slower, so
#: a part of the messages is enough. Memory grows with the number of messages if there are many keys, so a contender
#: whose memory is compared gets all messages.
_FEW_PARTS: Mapping[str, float] = {"quix": 0.15}
#: Slow contenders get the messages of five windows with final results. The last window stays open.
_WINDOW_PARTS: Mapping[str, float] = {"quix": 0.3}
#: Kafka Streams has no as-of join, and Quix Streams cannot read a topic as a table. In each join, a function computes
#: the joined value.
_JOINS: tuple[tuple[joins.Joined, tuple[str, ...]], ...] = (
    ("table", ("ours", "streams")),
    ("interval", ("ours", "quix", "streams")),
    ("asof", ("ours", "quix")),
    ("group", ("ours", "ours-builtin", "quix", "streams")),
    # Quix Streams has no tables of groups, from which a changed row could be subtracted.
    ("rows", ("ours-builtin", "streams")),
)
_MANY_PARTS: Mapping[str, float] = {"streams": 0.6}


def all_cases(sizes: Sizes) -> list[Case]:
    """All cases, in the order in which they run."""
    cases = []
    for name, guarantee, commit_s, contenders in _THROUGHPUT:
        keys = sizes.few_keys if name.startswith("few") else sizes.many_keys
        title = f"running totals, {keys:,} keys, {guarantee}, commit every {commit_s * 1_000:.0f} ms"
        case = Case(name, title, Kind.THROUGHPUT, sizes.messages, keys, guarantee, commit_s)
        parts = _FEW_PARTS if name.startswith("few") else _MANY_PARTS
        cases.append(replace(case, contenders=contenders, parts=parts))
    for emit in ("current", "final"):
        title = f"count in windows of 60 s, {emit} results, {sizes.few_keys:,} keys, exactly-once, commit every 1000 ms"
        case = Case(
            f"windows-{emit}", title, Kind.THROUGHPUT, sizes.window_messages, sizes.few_keys, "exactly-once", 1.0
        )
        cases.append(replace(case, windows=emit, contenders=_PEERS, parts=_WINDOW_PARTS))
    for kind, contenders in _JOINS:
        what = "rows of a table, counted by a field that changes (Quix Streams has none)" if kind == "rows" else kind
        title = f"{what}: {sizes.few_keys:,} keys, exactly-once, commit every 1000 ms"
        case = Case(f"join-{kind}", title, Kind.THROUGHPUT, sizes.messages, sizes.few_keys, "exactly-once", 1.0)
        cases.append(replace(case, joins=kind, contenders=contenders, parts=_FEW_PARTS))
    half = max(1, sizes.restore // 2)
    title = f"restore of {sizes.restore:,} changelog records of {half:,} keys"
    restore = Case("restore", title, Kind.RESTORE, 1_000, half, "exactly-once", 1.0, restore=sizes.restore)
    cases.append(replace(restore, contenders=("floor", "ours", "quix", "streams"), parts={"quix": 0.5}))
    title = f"running totals over state of {sizes.cache_keys:,} keys, larger than the block cache of 64 MiB"
    many = max(1, sizes.messages // 2)
    cache = Case("cache", title, Kind.THROUGHPUT, many, sizes.cache_keys, "exactly-once", 1.0, restore=sizes.cache_keys)
    cases.append(replace(cache, block_cache_mb=64, contenders=("ours", "ours-builtin", "streams")))
    warm_s = max(5, sizes.latency_s)
    title = f"latency at {sizes.latency_rate:,} messages/s, exactly-once, commit every 100 ms, after {warm_s} s"
    many = sizes.latency_rate * (warm_s + sizes.latency_s)
    latency = Case("latency", title, Kind.LATENCY, many, sizes.few_keys, "exactly-once", 0.1, linger_ms=5)
    contenders = ("floor", "ours", "quix", "streams")
    cases.append(replace(latency, rate=sizes.latency_rate, counted_s=sizes.latency_s, contenders=contenders))
    return cases


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run.

    Rates are messages (or changelog records) per second; CPU is seconds per million of them.
    """

    #: The number of messages (or changelog records) in the run.
    count: int
    rate: float
    warm_rate: float
    cpu: float
    warm_cpu: float | None
    broker_cpu: float
    peak_bytes: int
    others_cores: float
    hash: str
    latency_ms: Mapping[str, float]


def warm_up_of(cases: Sequence[Case]) -> Case:
    """The case that the raw client runs before all others, to warm up the broker.

    The raw client has no windows and no state.
    """
    known = next((case for case in cases if "floor" in case.contenders), None)
    return known or replace(cases[0], windows="", joins="", restore=0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The expected result of a case from plain Python: the number of outputs, and the hash of the final outputs."""

    outputs: int
    hash: str


class Runner:
    """Runs cases on one broker.

    Args:
        broker: The broker.
        home: A folder for state.
    """

    def __init__(self, broker: BrokerAddress, home: Path) -> None:
        self.broker, self._home = broker, home
        self._topics = Topics(broker.bootstrap)
        self._filled: dict[str, Wanted] = {}

    def run(self, case: Case, contender: Contender, number: int) -> Result:
        """Run the case and check its outputs.

        Raises:
            RunWrong: The run failed, or its outputs are wrong.
        """
        name = f"bench-{case.name}-{contender.name}-{number}"
        case = case.of(contender.name)
        work = self._prepare(case, contender, name)
        try:
            if case.kind is Kind.LATENCY:
                usage, latency_ms = self._run_with_probe(case, contender, work)
            else:
                usage, latency_ms = self._measured(contender, work), {}
            return self._judged(case, contender, work, usage, latency_ms)
        finally:
            shutil.rmtree(work.state_dir, ignore_errors=True)
            for topic in (work.output, *_changelogs(work), *([work.source] if case.kind is Kind.LATENCY else [])):
                self._topics.delete(topic)

    def _prepare(self, case: Case, contender: Contender, name: str) -> Work:
        # Kafka Streams also counts the messages of its repartition topic.
        is_streams = contender.name == "streams"
        work = Work(
            bootstrap=self.broker.bootstrap,
            group=name,
            source=self._source(case, name),
            output=f"{name}-out",
            count=joins.calls_of_streams(case.count, case.keys, case.joins) if is_streams else case.count,
            guarantee=case.guarantee,
            commit_s=case.commit_s,
            state_dir=str(self._home / name),
            linger_ms=case.linger_ms,
            restore=case.restore,
            changelog=f"{name}-changelog" if case.restore else "",
            block_cache_mb=case.block_cache_mb,
            windows=windows.told(case.windows),
            joins=joins.told(case.joins),
        )
        appended = {"message.timestamp.type": "LogAppendTime"}
        self._topics.create(TopicSpec(work.output, PARTITIONS, 1, appended))
        if case.seeded is not None:
            seed(contender.name, work, self._topics, case.seeded)
        return work

    def _source(self, case: Case, name: str) -> str:
        """Return the case's input topic, which all its runs share.

        The latency case gets a new, empty topic for each run.
        """
        if case.kind is Kind.LATENCY:
            self._topics.create(TopicSpec(f"{name}-in", PARTITIONS, 1))
            return f"{name}-in"
        topic = f"in-{case.count}-{case.keys}-{case.restore}-{case.windows}{case.joins}"
        if topic not in self._filled:
            for name in (topic, *([topic + joins.RIGHT] if case.joins else [])):
                # The event times of windows are in the past. Retention must not delete these messages.
                self._topics.create(TopicSpec(name, PARTITIONS, 1, {"retention.ms": "-1"}))
            if case.joins:
                fill(self.broker.bootstrap, joins.rows(topic, case.count, case.keys, case.joins), FIRST_TIMESTAMP_MS)
                self._filled[topic] = wanted_of(case)
                return topic
            before = first_of_each_partition(topic) if case.restore else []
            fill(self.broker.bootstrap, before)
            first_ms = FIRST_TIMESTAMP_MS if case.windows else None
            fill(self.broker.bootstrap, ((topic, *row, None) for row in bodies(case.count, case.keys)), first_ms)
            self._filled[topic] = wanted_of(case)
        return topic

    def _wanted(self, case: Case) -> Wanted:
        return wanted_of(case) if case.kind is Kind.LATENCY else self._filled[self._source(case, "")]

    def _measured(self, contender: Contender, work: Work) -> Usage:
        limit_s = PATIENCE_S + (work.count + work.restore / 2) / SLOWEST_RATE
        environment = {**contender.environment, "HOLDFAST_HOME": work.state_dir}
        return run_measured(contender.call(work), environment, self.broker.pid, limit_s)

    def _run_with_probe(self, case: Case, contender: Contender, work: Work) -> tuple[Usage, Mapping[str, float]]:
        isolation = "read_committed" if case.guarantee == "exactly-once" else "read_uncommitted"
        numbers = map(str, (case.count, case.keys, case.rate, case.counted_s))
        command = [sys.executable, "-m", "tests.bench.probe", work.bootstrap, work.source, work.output, isolation]
        with subprocess.Popen([*command, *numbers], cwd=PROJECT, stdout=subprocess.PIPE, text=True) as probe:
            try:
                usage = self._measured(contender, work)
                said, _ = probe.communicate(timeout=PATIENCE_S)
            except BaseException:
                probe.kill()
                raise
        if probe.returncode != 0:
            raise RunWrong(f"the probe of {work.group} ended with exit code {probe.returncode}")
        return usage, parse_last(said)

    def _judged(
        self, case: Case, contender: Contender, work: Work, usage: Usage, latency_ms: Mapping[str, float]
    ) -> Result:
        if case.windows:
            return self._judged_windows(case, work, usage)
        if case.joins:
            return self._judged_joins(case, work, usage)
        outputs = read_outputs(work.bootstrap, self._topics, work.output)
        if outputs.count != case.count:
            raise RunWrong(f"{work.group} has {outputs.count} outputs for {case.count} messages")
        result = ""
        if contender.name != "floor":
            result, wanted = hash_of(outputs.final().items()), self._wanted(case).hash
            if result != wanted:
                raise RunWrong(f"{work.group} has the result {result}, plain Python {wanted}")
        first, warm, last = outputs.moments()
        many, rate = case.count, case.count / (last - first or 0.001)
        warm_many = case.count * (1 - WARM_AFTER)
        warm_rate, warm_cpu = warm_many / (last - warm), usage.cpu_between(warm, last)
        warm_cpu = None if warm_cpu is None else warm_cpu / warm_many * MILLION
        if case.kind is Kind.RESTORE:
            if usage.told["restored"] < case.restore:
                raise RunWrong(f"{work.group} restored {usage.told['restored']} of {case.restore} records")
            many, rate, warm_cpu = case.restore, case.restore / usage.told["restore_s"], None
            warm_rate = rate
        cpu, broker = (used / many * MILLION for used in (usage.cpu_s, usage.broker_cpu_s))
        memory, others = usage.peak_bytes, usage.others_cores
        return Result(many, rate, warm_rate, cpu, warm_cpu, broker, memory, others, result, latency_ms)

    def _judged_windows(self, case: Case, work: Work, usage: Usage) -> Result:
        sent = windows.Sent()
        read_into(sent, work.bootstrap, self._topics, work.output)
        seen, wanted = Wanted(sent.count, windows.hash_of(sent.counts)), self._wanted(case)
        if seen != wanted:
            raise RunWrong(f"{work.group} has {seen}, plain Python {wanted}")
        warm, last, warm_many = sent.span()
        warm_cpu = usage.cpu_between(warm, last)
        warm_cpu = None if warm_cpu is None or not warm_many else warm_cpu / warm_many * MILLION
        rate = warm_many / (last - warm) if warm_many else case.count / usage.wall_s
        cpu, broker = (used / case.count * MILLION for used in (usage.cpu_s, usage.broker_cpu_s))
        memory, others = usage.peak_bytes, usage.others_cores
        return Result(case.count, rate, rate, cpu, warm_cpu, broker, memory, others, seen.hash, {})

    def _judged_joins(self, case: Case, work: Work, usage: Usage) -> Result:
        sent = joins.Sent(case.joins)
        read_into(sent, work.bootstrap, self._topics, work.output)
        seen, wanted = Wanted(*sent.result()), self._wanted(case)
        if seen != wanted:
            raise RunWrong(f"{work.group} has {seen}, plain Python {wanted}")
        stamps = sorted(sent.appended_ms)
        first, last = stamps[int(len(stamps) * WARM_AFTER)] / 1000, stamps[-1] / 1000
        warm_many = case.count * (1 - WARM_AFTER)
        warm_cpu = usage.cpu_between(first, last)
        warm_cpu = None if warm_cpu is None else warm_cpu / warm_many * MILLION
        rate = warm_many / (last - first or 0.001)
        cpu, broker = (used / case.count * MILLION for used in (usage.cpu_s, usage.broker_cpu_s))
        memory, others = usage.peak_bytes, usage.others_cores
        return Result(case.count, rate, rate, cpu, warm_cpu, broker, memory, others, seen.hash, {})


def wanted_of(case: Case) -> Wanted:
    """The expected result of a case, computed in plain Python."""
    if case.joins:
        return Wanted(*joins.expected(case.count, case.keys, case.joins))
    if not case.windows:
        return Wanted(case.count, hash_of(expected(case.count, case.keys, case.seeded).items()))
    counts = windows.expected(case.count, case.keys, case.windows)
    return Wanted(case.count if case.windows == "current" else len(counts), windows.hash_of(counts))


def _changelogs(work: Work) -> list[str]:
    """All changelog names that any contender may use. They are deleted afterwards; a missing topic is no error."""
    if work.windows:
        kind, duration, _, _, emit, *_ = work.windows.split(":")
        suppressed = "KTABLE-SUPPRESS-STATE-STORE-0000000004-changelog"
        names = ["windows-changelog", f"{kind}-{emit}-changelog", suppressed]
        quix = f"changelog__{work.group}--{work.source}--{kind}_window_{duration}"
        return [*(f"{work.group}-{name}" for name in names), quix]
    quix = f"changelog__{work.group}--{work.source}--default"
    return [f"{work.group}-default-changelog", quix, f"{work.group}-totals-changelog", f"{work.group}-changelog"]
