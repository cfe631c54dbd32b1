"""Whether the topics of deployed processors are as their state needs them: a pure decision over one cheap look at all.

    look (a few requests for all topics) ──► judge ──► findings, and the memory that the next look is compared with

Invariants:
    - Nothing here reads a clock, a cluster or a worker; the same facts and memory give the same findings.
    - A finding says what is seen and, when it failed, the one thing to do.
    - A topic that was deleted and made again stays told of until the state belongs to it: because its owners say so,
      or because a verb has made it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import msgspec

from holdfast.infra.kafka.inspection import OpenTransaction, standing
from holdfast.infra.kafka.records import Partition, TopicFacts, TopicSpec
from holdfast.processors.engine import required_topics
from holdfast.processors.engine.changelog.config import drift
from holdfast.processors.engine.state.task_store import RESEEDING
from holdfast.processors.engine.topology import ChangelogSpec, Topology

CONFIG_MATCHES = "config_matches_spec"
NO_HANGING_TRANSACTION = "no_hanging_transaction"
OFFSETS_WITHIN_LOG = "offsets_within_log"
PARTITION_COUNT = "partition_count"

#: A transaction of a worker lives 15 s, and its coordinator may need 10 s more to end that of a dead one; the last
#: stable offset of a partition that is behind its end and stands for longer, seconds, is held by another.
HELD_S = 28.0


@dataclass(frozen=True, slots=True)
class Look:
    """All topics and groups at one moment (``now``, seconds since 1970).

    Args:
        topics: By name, those that exist.
        starts: Topic -> partition -> the first offset that is there; as the next, of changelogs and inputs.
        stable: The last stable offset.
        ends: The high watermark, read after the others.
        committed: Group -> partition -> its next offset; without groups that were not asked or could not be.
    """

    now: float
    topics: Mapping[str, TopicFacts]
    starts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    stable: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    committed: Mapping[str, Mapping[Partition, int]] = field(default_factory=dict)


class Known(msgspec.Struct, frozen=True):
    """What is remembered of a topic: the id that state belongs to, when it was last seen with it (seconds since 1970),
    and by partition where the last stable offset stands behind the end, and since when."""

    topic_id: str
    seen_at: float
    held: dict[int, tuple[int, float]] = {}


class WatchMemory(msgspec.Struct, frozen=True):
    """What one look leaves for the next: the topics, and the last finding of each check, in short."""

    topics: dict[str, Known] = {}
    told: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says of one changelog (``processor`` and ``store``) or of one source topic (neither).

    ``short`` is the same as long as nothing changed; numbers that grow are in the sentence only.
    """

    check: str
    topic: str
    short: str
    processor: str = ""
    store: str = ""
    sentence: str = ""
    action: str = ""
    numbers: Mapping[str, int | float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether there is nothing to do."""
        return not self.sentence

    @property
    def text(self) -> str:
        """All of it, for people."""
        return f"{self.sentence} {self.action}".strip()

    @property
    def name(self) -> str:
        """What it is remembered by."""
        return f"{self.check} {self.topic}"


def decode_memory(cursor: str | None) -> WatchMemory:
    """From a sensor's cursor; one that can't be read is as none."""
    try:
        return msgspec.json.decode(cursor or "{}", type=WatchMemory)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return WatchMemory()


def encode_memory(memory: WatchMemory) -> str:
    """As text for a cursor."""
    return msgspec.json.encode(memory).decode()


def suspects(watched: Sequence[Topology], look: Look, memory: WatchMemory) -> tuple[str, ...]:
    """The processors whose owners have to be asked: a topic of theirs is not the remembered one, or not remembered."""

    def strange(name: str) -> bool:
        known, seen = memory.topics.get(name), look.topics.get(name)
        return seen is not None and (known is None or known.topic_id != seen.topic_id)

    return tuple(each.processor for each in watched if any(strange(name) for name in _names(each)))


def remember(
    watched: Sequence[Topology],
    look: Look,
    memory: WatchMemory,
    owners: Mapping[str, Set[str]],
    remade: Mapping[str, float],
) -> dict[str, Known]:
    """What is known of each topic after this look.

    Args:
        watched: The processors.
        look: What is seen.
        memory: What was known before.
        owners: Changelog -> the topic ids that the state of its owners belongs to, of those that were asked.
        remade: Processor -> when a verb that makes topics or positions anew was last through, seconds since 1970.
    """
    found: dict[str, Known] = {}
    for topology in watched:
        for name in _names(topology):
            known, seen = found.get(name) or memory.topics.get(name), look.topics.get(name)
            if seen is None:
                if known is not None:
                    found[name] = known
                continue
            told = owners.get(name, frozenset())
            accepted = known is not None and (
                remade.get(topology.processor, 0.0) > known.seen_at or _unread(name, topology, look)
            )
            right = _right_id(known, seen.topic_id, told, accepted=accepted)
            same = right == seen.topic_id
            found[name] = Known(
                right,
                look.now if same or known is None else known.seen_at,
                _held(name, look, known if same else None),
            )
    return found


def _right_id(known: Known | None, seen: str, owners: Set[str], *, accepted: bool) -> str:
    """The id that state belongs to."""
    others = sorted(owners - {seen, RESEEDING})
    if owners:
        return others[0] if others else seen
    return seen if known is None or accepted else known.topic_id


def _unread(name: str, topology: Topology, look: Look) -> bool:
    """Whether a source topic is one that nothing was processed of: whatever it is, state does not contradict it."""
    positions = look.committed.get(topology.processor)
    is_input = any(spec.name == name for spec in topology.inputs)
    return is_input and positions is not None and not any(place.topic == name for place in positions)


def _held(name: str, look: Look, known: Known | None) -> dict[int, tuple[int, float]]:
    """Where the last stable offset stands behind the end, and since when."""
    before = {} if known is None else known.held
    held = {}
    for number, stable in look.stable.get(name, {}).items():
        if stable < look.ends.get(name, {}).get(number, stable):
            at, since = before.get(number, (stable, look.now))
            held[number] = (stable, since if at == stable else look.now)
    return held


def held_too_long(known: Mapping[str, Known], now: float, held_s: float = HELD_S) -> dict[str, tuple[int, ...]]:
    """Topic -> its partitions whose last stable offset stands for too long: their transactions are to be looked at."""
    found = {
        name: tuple(number for number, (_, since) in sorted(each.held.items()) if now - since >= held_s)
        for name, each in known.items()
    }
    return {name: numbers for name, numbers in found.items() if numbers}


def judge(
    watched: Sequence[Topology],
    look: Look,
    known: Mapping[str, Known],
    transactions: Mapping[Partition, Sequence[OpenTransaction]],
    *,
    busy: Set[str] = frozenset(),
    held_s: float = HELD_S,
) -> Iterator[Finding]:
    """Say of every changelog and of every source topic whether it is as state needs it.

    Args:
        watched: The processors.
        look: What is seen.
        known: What ``remember`` made of it.
        transactions: By partition, those that are open where ``held_too_long`` says so, as far as they could be asked.
        busy: Processors that a verb works on just now: nothing is said of their topics.
        held_s: See ``HELD_S``.
    """
    for topology in watched:
        if topology.processor in busy:
            continue
        expected = required_topics.resolve(topology, look.topics)
        for changelog in topology.changelogs:
            name = changelog.topic.name
            yield judge_config(topology.processor, changelog, expected[name][1], look.topics.get(name), known.get(name))
            yield _transactions(topology.processor, changelog, look, known.get(name), transactions, held_s)
    readers: dict[str, list[Topology]] = {}
    for topology in watched:
        for spec in topology.inputs:
            readers.setdefault(spec.name, []).append(topology)
    for topic, reading in readers.items():
        if any(each.processor in busy for each in reading):
            continue
        groups = [each.processor for each in reading]
        if topic not in look.topics or all(group in look.committed for group in groups):
            yield judge_offsets(topic, groups, look, known.get(topic))
        yield judge_partitions(topic, reading, look.topics)


def judge_config(
    processor: str, changelog: ChangelogSpec, expected: TopicSpec, seen: TopicFacts | None, known: Known | None
) -> Finding:
    """Whether a changelog is there, is the one that state belongs to, and is configured as state needs it."""
    topic, store = changelog.topic.name, changelog.store
    fill = (
        f"If local state is right: `holdfast apply backfill {processor} --store {store} --from local` (stop it before, "
        f"where it runs: `holdfast apply stop {processor}`)."
    )
    if seen is None:
        sentence = f"Changelog {topic} is not there: nothing could be restored from it."
        return Finding(CONFIG_MATCHES, topic, "missing", processor, store, sentence, fill, {"drifted_entries": 0})
    if known is not None and known.topic_id != seen.topic_id:
        sentence = (
            f"Changelog {topic} was deleted and made again (topic id {seen.topic_id}, state belongs to "
            f"{known.topic_id}): what it held is gone."
        )
        short = f"recreated {seen.topic_id}"
        return Finding(CONFIG_MATCHES, topic, short, processor, store, sentence, fill, {"drifted_entries": 0})
    drifted = drift(expected.config, seen.config)
    numbers = {"drifted_entries": len(drifted)}
    if not drifted:
        return Finding(CONFIG_MATCHES, topic, "ok", processor, store, numbers=numbers)
    text = "; ".join(f"{name} is {seen.config.get(name, 'unset')}, expected {value}" for name, value in drifted.items())
    loses = " Kafka deletes state by it." if "cleanup.policy" in drifted else ""
    action = f"Materialise this asset to repair it, or: `holdfast apply provision {processor}`."
    return Finding(CONFIG_MATCHES, topic, text, processor, store, f"Changelog {topic}: {text}.{loses}", action, numbers)


def _transactions(
    processor: str,
    changelog: ChangelogSpec,
    look: Look,
    known: Known | None,
    transactions: Mapping[Partition, Sequence[OpenTransaction]],
    held_s: float,
) -> Finding:
    """The partitions that stand for too long, with what is open on them."""
    topic = changelog.topic.name
    held = {} if known is None else known.held
    standing_s = {number: look.now - since for number, (_, since) in held.items()}
    ends = look.ends.get(topic, {})
    places = [
        HeldPartition(
            Partition(topic, number),
            at,
            ends.get(number, at),
            standing_s[number],
            tuple(transactions.get(Partition(topic, number), ())),
        )
        for number, (at, _) in sorted(held.items())
        if standing_s[number] >= held_s
    ]
    return judge_transactions(processor, changelog, places)


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition whose last stable offset stands behind its end for so long, and the transactions open on it."""

    place: Partition
    stable: int
    end: int
    stood_s: float
    open: tuple[OpenTransaction, ...] = ()


def judge_transactions(processor: str, changelog: ChangelogSpec, held: Sequence[HeldPartition]) -> Finding:
    """Whether a transaction holds a changelog, so that nothing behind it is compacted or restored."""
    topic, store = changelog.topic.name, changelog.store
    numbers = {"held_partitions": len(held), "held_offsets": sum(each.end - each.stable for each in held)}
    if not held:
        return Finding(NO_HANGING_TRANSACTION, topic, "ok", processor, store, numbers=numbers)
    sentences, actions, short = [], [], []
    for each in held:
        where = (
            f"{topic}[{each.place.number}]: the last stable offset stands at {each.stable}, below the end at "
            f"{each.end}, for {each.stood_s:.0f} s; nothing behind it is compacted or restored."
        )
        words, action = _of_transaction(each.open[0] if each.open else None, processor)
        sentences.append(f"{where} {words}")
        actions.append(action)
        short.append(f"{each.place.number} at {each.stable}: {action}")
    return Finding(
        NO_HANGING_TRANSACTION,
        topic,
        "; ".join(short),
        processor,
        store,
        " ".join(sentences),
        " ".join(dict.fromkeys(actions)),
        numbers,
    )


def _of_transaction(transaction: OpenTransaction | None, processor: str) -> tuple[str, str]:
    abort = f"`holdfast apply compact {processor}`"
    if transaction is None:
        return "A transaction is open.", f"Look whose it is; one that hangs is aborted by {abort}."
    match standing(transaction):
        case "hanging":
            return (
                f"A transaction hangs, {transaction.sentence}; no coordinator knows it, so that it stays for ever.",
                f"Abort it, what it wrote was never committed: {abort}.",
            )
        case "open":
            limit = "" if transaction.timeout_s is None else f" after {transaction.timeout_s:.0f} s"
            return (
                f"A transaction is {transaction.sentence}.",
                f"Its producer ends it, or its coordinator{limit}: look at that program.",
            )
        case _:
            return (
                f"A transaction is {transaction.sentence}; no coordinator tells of it, and it is too young to be given "
                "up.",
                f"Once it is older than transaction.max.timeout.ms, it is aborted by {abort}.",
            )


def judge_offsets(topic: str, readers: Sequence[str], look: Look, known: Known | None) -> Finding:
    """Whether every reader's committed offsets lie within what a source topic still has."""
    seen = look.topics.get(topic)
    if seen is None:
        sentence = f"Source topic {topic} is not there."
        action = f"Have it made again with its records, or create it: `holdfast apply provision {readers[0]}`."
        return Finding(OFFSETS_WITHIN_LOG, topic, "missing", sentence=sentence, action=action)
    starts, ends = look.starts.get(topic, {}), look.ends.get(topic, {})
    sentences, actions, lost = [], [], 0
    recreated = known is not None and known.topic_id != seen.topic_id
    for reader in readers:
        positions = {
            place.number: offset for place, offset in look.committed.get(reader, {}).items() if place.topic == topic
        }
        told, gone = [], 0
        for number, offset in sorted(positions.items()):
            if offset < starts.get(number, offset):
                gone += 1
                lost += starts[number] - offset
                told.append(
                    f"{topic}[{number}] begins at offset {starts[number]}, but {reader} has processed only up to "
                    f"{offset}: {starts[number] - offset} records are gone unread."
                )
            elif offset > ends.get(number, offset):
                told.append(
                    f"{topic}[{number}] ends at offset {ends[number]}, but {reader} has processed {offset}: it was "
                    "truncated or made again."
                )
        if recreated and positions and not told:
            told.append(
                f"{topic} was deleted and made again: the offsets that {reader} has committed mean other records now."
            )
        if told:
            sentences += told
            actions.append(
                f"To go on without them: `holdfast apply reposition {reader}`."
                if gone == len(told)
                else f"Build the state anew from what is there: `holdfast apply clear {reader} --all --rewind "
                "earliest` (stop the processor before, where it runs)."
            )
    numbers = {"records_gone": lost}
    if not sentences:
        return Finding(OFFSETS_WITHIN_LOG, topic, "ok", numbers=numbers)
    action = f"{' '.join(actions)} Or bring the state back from the warehouse: `holdfast apply restore`."
    text = " ".join(sentences)
    return Finding(OFFSETS_WITHIN_LOG, topic, text, sentence=text, action=action, numbers=numbers)


def judge_partitions(topic: str, readers: Sequence[Topology], topics: Mapping[str, TopicFacts]) -> Finding:
    """Whether a source topic has as many partitions as the state that was built from it."""
    seen = topics.get(topic)
    if seen is None:
        return Finding(PARTITION_COUNT, topic, "ok", numbers={"partitions": 0})
    sentences, actions = [], []
    for topology in readers:
        for store in topology.stores:
            log = topology.changelog_of(store.name)
            facts = None if log is None or topic not in store.inputs else topics.get(log.name)
            if facts is None or facts.partitions == seen.partitions:
                continue
            sentences.append(
                f"Source topic {topic} has {seen.partitions} partitions, the state of store {store.name} of "
                f"{topology.processor} has {facts.partitions}: keys and their state have parted."
            )
            actions.append(
                f"Build the state anew, outputs are sent again: `holdfast apply clear {topology.processor} --all "
                "--rewind earliest` (stop the processor before, where it runs)."
            )
    text = " ".join(sentences)
    numbers = {"partitions": seen.partitions}
    return Finding(
        PARTITION_COUNT,
        topic,
        text or "ok",
        sentence=text,
        action=" ".join(dict.fromkeys(actions)),
        numbers=numbers,
    )


def changed(findings: Sequence[Finding], memory: WatchMemory) -> tuple[Finding, ...]:
    """Those that say something else than last time."""
    return tuple(each for each in findings if memory.told.get(each.name) != each.short)


def _names(topology: Topology) -> list[str]:
    return [*(spec.name for spec in topology.inputs), *(spec.topic.name for spec in topology.changelogs)]
