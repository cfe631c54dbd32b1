"""Judges whether topics match the state of deployed processors, from the results of a few cheap requests to Kafka.

    look (a few requests for all topics) ──► judge ──► findings, and the memory that the next check compares with

Invariants:
    - The functions read no clock, no cluster and no worker. They get the results of requests (facts) and the memory.
    - A failed finding describes the problem and names one action.
    - A topic that was deleted and created again fails its check until the state belongs to the new topic. The state
      belongs to it when the state's owners report the new topic id, or after a command that recreates the topic or its
      positions.
    - A changelog that lost records fails its check until it is created again. The first offset shows the loss, because
      retention and DeleteRecords raise it. Compaction does not raise the first offset, and nothing lowers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import msgspec

from holdfast.infra.kafka.inspection.hanging_transactions import OpenTransaction, state_of
from holdfast.infra.kafka.records import Partition, TopicFacts, TopicSpec
from holdfast.processors.engine import provisioning
from holdfast.processors.engine.changelog.config import drift
from holdfast.processors.engine.state.databases.task_meta import RESEEDING
from holdfast.processors.engine.topology import ChangelogSpec, Topology
from holdfast.processors.lifecycle.health.compaction import transaction_in_words

CONFIG_MATCHES = "config_matches_spec"
NO_HANGING_TRANSACTION = "no_hanging_transaction"
OFFSETS_WITHIN_LOG = "offsets_within_log"
PARTITION_COUNT = "partition_count"
TOPIC_EXISTS = "topic_exists"

#: If a last stable offset stays below the end for longer than these seconds, no live worker has the open transaction.
#: A worker's transaction lasts at most 15 s. Kafka ends the transaction of a dead worker at most 10 s later.
HELD_S = 28.0


@dataclass(frozen=True, slots=True)
class Look:
    """The offsets and settings of all topics and consumer groups at one moment (``now``, seconds since 1970).

    Args:
        topics: Topic name -> facts of the topic; only existing topics.
        starts: Topic -> partition -> first offset that still exists. ``starts`` and ``ends`` cover changelogs and
            inputs.
        stable: Topic -> partition -> last stable offset; only changelogs.
        ends: Topic -> partition -> high watermark, read after the other offsets.
        committed: Group -> partition -> committed offset; only groups whose offsets Kafka returned.
    """

    now: float
    topics: Mapping[str, TopicFacts]
    starts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    stable: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    committed: Mapping[str, Mapping[Partition, int]] = field(default_factory=dict)


class Known(msgspec.Struct, frozen=True):
    """The properties of one topic that a check stores, so that the next check can compare.

    Args:
        topic_id: The id of the topic from which the state was built.
        seen_at: Time when the topic last had this id, seconds since 1970.
        held: Only partitions whose last stable offset is below the end. Maps a partition to this offset, and to the
            time since which the offset has not moved (seconds since 1970).
    """

    topic_id: str
    seen_at: float
    held: dict[int, tuple[int, float]] = {}


class WatchMemory(msgspec.Struct, frozen=True):
    """The data that one check stores for the next check: properties of each topic, and short texts of the findings."""

    topics: dict[str, Known] = {}
    told: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check for one topic.

    For a changelog, ``processor`` and ``store`` are set; for other topics both are empty. ``short`` is used to detect
    changes, so growing numbers are only in ``sentence``.
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
        """Whether the check passed, so that no action is needed."""
        return not self.sentence

    @property
    def text(self) -> str:
        """The fault and the action as one text; empty if the check passed."""
        return f"{self.sentence} {self.action}".strip()

    @property
    def name(self) -> str:
        """The key of this finding in ``WatchMemory.told``, made of the check's name and the topic."""
        return f"{self.check} {self.topic}"


def decode_memory(cursor: str | None) -> WatchMemory:
    """Decodes what the last check stored in the sensor's cursor; an unreadable cursor gives an empty memory."""
    try:
        return msgspec.json.decode(cursor or "{}", type=WatchMemory)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return WatchMemory()


def encode_memory(memory: WatchMemory) -> str:
    """Encodes the memory as JSON for a sensor's cursor."""
    return msgspec.json.encode(memory).decode()


def suspects(watched: Sequence[Topology], look: Look, memory: WatchMemory) -> tuple[str, ...]:
    """The processors whose workers must report the ids of the topics from which their state was built.

    At least one topic of these processors has another id than in the memory of the last check, or is missing in it.
    """

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
    """The properties of each topic that the next check needs, computed from the present facts and the last memory.

    Args:
        watched: The topologies of the processors to check.
        look: The present offsets and settings.
        memory: The data that the last check stored.
        owners: Changelog -> ids of the topics from which its owners (workers) built their state, as they report them.
        remade: Processor -> time when an operator command last recreated its topics or positions, seconds since 1970.
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
    """Returns the topic id that the state was built from; ``seen`` is the id of the topic that exists now."""
    others = sorted(owners - {seen, RESEEDING})
    if owners:
        return others[0] if others else seen
    return seen if known is None or accepted else known.topic_id


def _unread(name: str, topology: Topology, look: Look) -> bool:
    """Whether a processor has read nothing of a source topic; its state then does not depend on the topic's id."""
    positions = look.committed.get(topology.processor)
    is_input = any(spec.name == name for spec in topology.inputs)
    return is_input and positions is not None and not any(place.topic == name for place in positions)


def _held(name: str, look: Look, known: Known | None) -> dict[int, tuple[int, float]]:
    """Maps each partition whose last stable offset is below the end to this offset and the time of its last change."""
    before = {} if known is None else known.held
    held = {}
    for number, stable in look.stable.get(name, {}).items():
        if stable < look.ends.get(name, {}).get(number, stable):
            at, since = before.get(number, (stable, look.now))
            held[number] = (stable, since if at == stable else look.now)
    return held


def held_too_long(known: Mapping[str, Known], now: float, held_s: float = HELD_S) -> dict[str, tuple[int, ...]]:
    """Maps topics to the partitions whose last stable offset was below the end, unchanged, for ``held_s`` seconds."""
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
    """The findings (results of checks) of every changelog, source topic, output topic and dead-letter topic.

    Args:
        watched: The topologies of the processors to check.
        look: The present offsets and settings.
        known: The result of ``remember``.
        transactions: Open transactions of the partitions in ``held_too_long``, as far as Kafka answered.
        busy: Processors with an open apply (execution of a plan); their topics are not checked.
        held_s: Maximum seconds for which a last stable offset may stay unchanged; default ``HELD_S``.
    """
    for topology in watched:
        if topology.processor in busy:
            continue
        expected = provisioning.resolve(topology, look.topics)
        for changelog in topology.changelogs:
            name = changelog.topic.name
            yield judge_config(topology.processor, changelog, expected[name][1], look, known.get(name))
            held = _held_partitions(name, look, known.get(name), transactions, held_s)
            yield judge_transactions(topology.processor, changelog, held)
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
        yield judge_partitions(topic, reading, look)
    for topic, writing in writers_of(watched).items():
        if not any(each.processor in busy for each in writing):
            yield judge_existence(topic, writing, look.topics)


def judge_config(
    processor: str, changelog: ChangelogSpec, expected: TopicSpec, look: Look, known: Known | None
) -> Finding:
    """Checks a changelog: it exists, has the topic id of the state, the expected configuration, and all its records."""
    topic, store = changelog.topic.name, changelog.store
    seen = look.topics.get(topic)
    fill = (
        f"If local state is right: `holdfast apply backfill {processor} --store {store} --from local`; first "
        f"`holdfast apply stop {processor}` if it runs."
    )
    if seen is None:
        sentence = f"Changelog {topic} is missing; no restore is possible."
        return Finding(CONFIG_MATCHES, topic, "missing", processor, store, sentence, fill, {"drifted_entries": 0})
    if known is not None and known.topic_id != seen.topic_id:
        sentence = (
            f"Changelog {topic} was deleted and created again: its topic id is {seen.topic_id}, and state belongs to "
            f"{known.topic_id}. Its former records are lost."
        )
        short = f"recreated {seen.topic_id}"
        return Finding(CONFIG_MATCHES, topic, short, processor, store, sentence, fill, {"drifted_entries": 0})
    drifted = drift(expected.config, seen.config)
    cut = {number: start for number, start in sorted(look.starts.get(topic, {}).items()) if start > 0}
    numbers = {"drifted_entries": len(drifted), "records_gone": sum(cut.values())}
    text = "; ".join(f"{name} is {seen.config.get(name, 'unset')}, expected {value}" for name, value in drifted.items())
    loses = " With this policy Kafka deletes state." if "cleanup.policy" in drifted else ""
    sentence = f"Changelog {topic}: {text}.{loses}" if drifted else ""
    action = f"Materialise this asset to repair it, or: `holdfast apply provision {processor}`." if drifted else ""
    if cut:
        number, start = next(iter(cut.items()))
        more = "" if len(cut) == 1 else f" (as do {len(cut) - 1} others)" if len(cut) > 2 else " (as does another one)"
        sentence = (
            f"Changelog {topic} lost state: {sum(cut.values()):,} of its records are gone. {topic}[{number}] begins at "
            f"offset {start:,}{more}, expected 0. No restore is possible from it. {sentence}"
        ).rstrip()
        action, text = _refilled(processor, store), f"cut {text}"
    return Finding(CONFIG_MATCHES, topic, text or "ok", processor, store, sentence, action, numbers)


def _refilled(processor: str, store: str) -> str:
    """Instructions for an operator to create a changelog again, which also work while the processor runs."""
    return (
        f"Create the changelog again from local state, also while {processor} runs: `holdfast apply backfill "
        f"{processor} --store {store} --from local`. If local state is lost: {_rebuild(processor)}"
    )


def _rebuild(processor: str) -> str:
    return (
        f"Rebuild the state, which sends outputs again: `holdfast apply clear {processor} --all --rewind earliest`; "
        f"first `holdfast apply stop {processor}` if it runs."
    )


def _held_partitions(
    topic: str,
    look: Look,
    known: Known | None,
    transactions: Mapping[Partition, Sequence[OpenTransaction]],
    held_s: float,
) -> list[HeldPartition]:
    """Partitions whose last stable offset has not moved for ``held_s`` seconds, each with its open transactions."""
    found = []
    for number, (at, since) in sorted(known.held.items()) if known is not None else ():
        if look.now - since >= held_s:
            place, end = Partition(topic, number), look.ends.get(topic, {}).get(number, at)
            found.append(HeldPartition(place, at, end, look.now - since, tuple(transactions.get(place, ()))))
    return found


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition whose last stable offset has been below its end, unchanged, for ``stood_s`` seconds.

    It also has the partition's open transactions.
    """

    place: Partition
    stable: int
    end: int
    stood_s: float
    open: tuple[OpenTransaction, ...] = ()


def judge_transactions(processor: str, changelog: ChangelogSpec, held: Sequence[HeldPartition]) -> Finding:
    """Checks whether an open transaction blocks a changelog.

    Records after the start of such a transaction are neither compacted nor restored.
    """
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
        return "A transaction is open.", f"Find its producer. If it hangs, abort it with {abort}."
    meaning = state_of(transaction)
    sentence, action = transaction_in_words(transaction, meaning)
    return sentence, action if meaning == "open" else f"{action} To abort it: {abort}."


def judge_offsets(topic: str, readers: Sequence[str], look: Look, known: Known | None) -> Finding:
    """Checks whether the committed offsets of every reader still exist in a source topic."""
    seen = look.topics.get(topic)
    if seen is None:
        sentence = f"Source topic {topic} is missing."
        action = f"Have it created again with its records, or create it empty: `holdfast apply provision {readers[0]}`."
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
                    f"{offset}: {starts[number] - offset} records were deleted before they were read."
                )
            elif offset > ends.get(number, offset):
                told.append(
                    f"{topic}[{number}] ends at offset {ends[number]}, but {reader} has processed {offset}: it was "
                    "truncated, or deleted and created again."
                )
        if recreated and positions and not told:
            told.append(
                f"{topic} was deleted and created again: the committed offsets of {reader} mean other records now."
            )
        if told:
            sentences += told
            actions.append(
                f"To continue without them: `holdfast apply reposition {reader}`."
                if gone == len(told)
                else f"Rebuild the state from the records that are left: `holdfast apply clear {reader} --all --rewind "
                f"earliest`; first `holdfast apply stop {reader}` if it runs."
            )
    numbers = {"records_gone": lost}
    if not sentences:
        return Finding(OFFSETS_WITHIN_LOG, topic, "ok", numbers=numbers)
    from_warehouse = "Or restore the state from the warehouse: `holdfast apply restore PROCESSOR --at latest`."
    action = f"{' '.join(actions)} {from_warehouse}"
    text = " ".join(sentences)
    return Finding(OFFSETS_WITHIN_LOG, topic, text, sentence=text, action=action, numbers=numbers)


def judge_partitions(topic: str, readers: Sequence[Topology], look: Look) -> Finding:
    """Checks whether a source topic still has the number of partitions that the state was built with."""
    seen = look.topics.get(topic)
    if seen is None:
        return Finding(PARTITION_COUNT, topic, "ok", numbers={"partitions": 0})
    sentences, actions = [], []
    for topology in readers:
        for store in topology.stores:
            log = topology.changelog_of(store.name)
            facts = None if log is None or topic not in store.inputs else look.topics.get(log.name)
            if facts is None or facts.partitions == seen.partitions:
                continue
            beyond = range(seen.partitions, facts.partitions)
            if beyond and not any(look.ends.get(facts.name, {}).get(number) for number in beyond):
                sentences.append(
                    f"Changelog {facts.name} has {facts.partitions} partitions, its source topic {topic} has "
                    f"{seen.partitions}: {topology.processor} does not start again with it."
                )
                actions.append(_refilled(topology.processor, store.name))
                continue
            sentences.append(
                f"Source topic {topic} has {seen.partitions} partitions, the state of store {store.name} of "
                f"{topology.processor} has {facts.partitions}: keys and their state are in different partitions."
            )
            actions.append(_rebuild(topology.processor))
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


def writers_of(watched: Iterable[Topology]) -> dict[str, list[Topology]]:
    """Maps each output or dead-letter topic to the processors that write to it."""
    found: dict[str, list[Topology]] = {}
    for topology in watched:
        for spec in (*topology.outputs, *filter(None, (topology.dead_letter,))):
            found.setdefault(spec.name, []).append(topology)
    return found


def judge_existence(topic: str, writers: Sequence[Topology], topics: Mapping[str, TopicFacts]) -> Finding:
    """Checks whether an output or dead-letter topic exists."""
    if topic in topics:
        return Finding(TOPIC_EXISTS, topic, "ok")
    names = [each.processor for each in writers]
    dead = all(topic not in (spec.name for spec in each.outputs) for each in writers)
    sentence = (
        f"{'Dead-letter' if dead else 'Output'} topic {topic} is missing; {', '.join(names)} cannot write to it and "
        "stops at the next record for it."
    )
    actions = [f"`holdfast apply deploy {name}`" for name in names]
    action = f"Create it and continue, nothing is lost: {', '.join(actions)}."
    return Finding(TOPIC_EXISTS, topic, "missing", sentence=sentence, action=action)


def changed(findings: Sequence[Finding], memory: WatchMemory) -> tuple[Finding, ...]:
    """The findings whose short text is not the same as in the memory of the last check."""
    return tuple(each for each in findings if memory.told.get(each.name) != each.short)


def _names(topology: Topology) -> list[str]:
    return [*(spec.name for spec in topology.inputs), *(spec.topic.name for spec in topology.changelogs)]
