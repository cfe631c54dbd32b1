"""Plan ``erase``: delete every copy of one message key, and prove for each place that no copy is left.

    state ──► changelogs ──► local files ──► checkpoints ──► tables ──► dead letters ──► exports, archive, registry
    deletes   compaction     rewritten       taken again     rewritten  written again    rewritten

The order matters: a place that is filled from another one comes after it. State comes first, so that no later copy can
contain the key again. The messages in input and output topics stay, because other programs own these topics. The
certificate names them, with the time when Kafka deletes them.

Invariants:
    - A stage may be repeated: it looks for copies again, and finds none where an earlier attempt removed them.
    - No stage's text, finding or verdict contains the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine.topology import Topology, fed_by_sources
from holdfast.processors.lifecycle.plans.certificates import ErasureFacts
from holdfast.processors.lifecycle.plans.explanation import count_of, quoted
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, read_facts, selected
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Erase, Keys
from holdfast.processors.lifecycle.plans.stages import Certify, CopyKind, EraseCopy, NoteErasure, SetTopicConfig, Stage
from holdfast.processors.lifecycle.verbs.refusals import missing_topics, of_topic, parts_of_groups, retracting_with

#: The configuration with which Kafka compacts a changelog within seconds, also its newest records.
EAGER: Mapping[str, str] = {
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1000",
    "min.cleanable.dirty.ratio": "0.0",
    "segment.ms": "1000",
}
#: Kafka's default of an entry of ``EAGER`` for which changelogs have no standard value.
_DEFAULTS = {"min.cleanable.dirty.ratio": "0.5"}


def read(request: Erase, source: FactSource, topology: Topology) -> Facts:
    """Reads the facts for the plan, including earlier erasures and how much state the key has now."""
    names = tuple(store.name for store in topology.stores)
    facts = read_facts(topology, source, count=(names, Keys((request.key,)), ()))
    erased = source.erasures(request.processor)
    return replace(facts, erased=erased, mark=source.mark(request.processor, request.key))


def plan(request: Erase, facts: Facts, topology: Topology) -> Plan:
    """The plan that erases a key; refused if workers can't delete it, or if a topic would bring it back."""
    logs = {spec.store: spec.topic.name for spec in topology.changelogs}
    basis = {
        "topic_id": facts.topic_ids(list(logs.values())),
        "deployed": facts.deployed,
        "alive": facts.alive,
        "config": {
            name: {entry: value for entry, value in each.config.items() if entry in EAGER and value != EAGER[entry]}
            for name, each in selected(facts.topics, list(logs.values())).items()
        },
    }
    refused = _not_running(facts) or missing_topics(facts, topology) or _comes_back(request, facts, topology)
    if refused is not None:
        return Plan(request=request, verdict=refused, basis=basis)
    made = tuple(_stages(request, facts, topology))
    places = sum(isinstance(each, EraseCopy) for each in made)
    return Plan(
        request=request,
        verdict=Ready(f"delete the copies of one key in {count_of(places, 'place')}, and prove that they are gone."),
        stages=made,
        findings=tuple(_findings(facts, topology)),
        kept=(
            "All other keys, the input offsets, and the messages in input and output topics. The certificate names "
            "these topics, with the time when Kafka deletes the messages.",
            *(["What sinks have stored in other systems. The certificate names them."] if _sinks(topology) else []),
            "State of other keys that was made from this key's messages, as of groups and joins.",
            "Logs, runs in Dagster, and backups that were made outside of Holdfast: they are not searched.",
        ),
        deleted=(
            "the key's state, with all former values in changelogs, checkpoints and tables",
            "all older checkpoints, and all older versions of the tables that contain the key",
            "the key's dead letters, and its lines in exports, in the archive and in the registry",
        ),
        undo="None: an erased key can't be restored.",
        keys=1,
        basis=basis,
        after_kill="go on",
    )


def _not_running(facts: Facts) -> Refused | None:
    name = facts.processor
    if not facts.running:
        return Refused(
            f"{name} does not run, and only its workers can delete state.",
            f"Start it: `holdfast deploy {name}`. Then erase the key.",
            {"processor": name},
        )
    idle = [each.slot for each in facts.instances if each.phase != "running"]
    if not idle:
        return None
    return Refused(
        f"Slot {', '.join(idle)} of {name} has a process that is not running yet.",
        f"Wait until `holdfast status` shows it running, or start it again: `holdfast restart {name}`.",
        {"processor": name, "slot": idle[0]},
    )


def _comes_back(request: Erase, facts: Facts, topology: Topology) -> Refused | None:
    """Refuses if a store has the key that only its source topic may change, or that other entries must fit."""
    held = [
        store.name for store in topology.stores if store.name not in facts.counted or facts.counted[store.name].keys
    ]
    for log in topology.source_logs:
        if log.store in held:
            refused = of_topic(log)
            return replace(
                refused, action=f"Write a record of the key without a value to {log.topic}. Then erase the key."
            )
    groups = retracting_with(topology, held)
    return parts_of_groups(topology, tuple(name for name in held if name in groups)) if groups else None


def _stages(request: Erase, facts: Facts, topology: Topology) -> Iterator[Stage]:
    key = request.key
    yield NoteErasure("record that the key is being erased, by a keyed hash", key)
    own = [store.name for store in topology.stores if topology.source_log_of(store.name) is None]
    for sub in topology.subtopologies:
        if group := tuple(name for name in own if name in sub.stores):
            says = f"delete the key's state in {quoted(group)}, in committed transactions"
            yield EraseCopy(says, "state", "+".join(group), key, group)
    logs = [(spec.topic.name, spec.store) for spec in topology.changelogs if spec.store in own]
    for topic, store in logs:
        yield SetTopicConfig(f"let Kafka compact {topic} at once", topic, dict(EAGER))
        says = f"read {topic} from its first offset to its end, until compaction has removed the key's records"
        yield EraseCopy(says, "changelog", topic, key, (store,))
        yield SetTopicConfig(f"set the former compaction of {topic} again", topic, _former(topic, facts, topology))
    stores = tuple(own)
    for kind, name, says in _other_places(facts, topology, logged=bool(logs)):
        yield EraseCopy(says, kind, name, key, stores)
        if kind == "checkpoints":
            for store in [*(store for _, store in logs), *(log.store for log in topology.source_logs)]:
                rows = f"delete the key's rows of {store} in the warehouse, with all versions that have them"
                yield EraseCopy(rows, "table", store, key, (store,))
    says = "name the topics whose messages stay, and complete the certificate"
    yield Certify(says, _staying(topology), _sinks(topology))


def _other_places(facts: Facts, topology: Topology, *, logged: bool) -> Iterator[tuple[CopyKind, str, str]]:
    name = topology.processor
    if topology.stores:
        yield "files", name, "rewrite the local files of workers and standbys, and read all local copies"
    if logged:
        yield "checkpoints", name, "take new checkpoints, delete all older ones, and read what is left"
    if topology.dead_letter is not None:
        letters = topology.dead_letter.name
        yield "letters", letters, f"write the other letters of {letters} again, and delete those of the key"
    yield "exports", name, "remove the key's lines from export files"
    yield "archives", name, "remove the key's records from archived topics of the processor"
    yield "registry", name, "remove the key from recorded plans"


def _former(topic: str, facts: Facts, topology: Topology) -> dict[str, str]:
    """The compaction settings of a changelog before the erasure.

    A value of ``EAGER`` is what an erasure left that was abandoned. Then the defined value is set.
    """
    spec = next(each.topic for each in topology.changelogs if each.topic.name == topic)
    now = facts.topics[topic].config if topic in facts.topics else {}
    defined = {**_DEFAULTS, **spec.config}
    return {
        entry: now[entry] if entry in now and now[entry] != eager else defined.get(entry, eager)
        for entry, eager in EAGER.items()
    }


def _staying(topology: Topology) -> dict[str, str]:
    """Each topic whose messages stay, with what else is to know about it.

    The time of their expiry is not in the plan, because the plan's hash would change with each second.
    """
    own = {spec.topic for spec in topology.repartitions}
    gone = {spec.topic.name for spec in topology.changelogs} | {each.name for each in [topology.dead_letter] if each}
    sources = fed_by_sources(topology)
    said = dict.fromkeys(sources, "a source of this processor writes it")
    said |= dict.fromkeys(own, "workers delete its messages after they have processed them")
    return {spec.name: said.get(spec.name, "") for spec in topology.topics() if spec.name not in gone}


def _sinks(topology: Topology) -> dict[str, str]:
    """Each sink of the processor, with the place of its system; "" if the place is not known."""
    return {each.name: each.system.place for each in topology.connectors if each.role == "sink"}


def expiry(topic: TopicFacts, now: float) -> str:
    """Until when messages that are in a topic at the time ``now`` (seconds since 1970) stay there."""
    policy = topic.config.get("cleanup.policy", "delete")
    kept = int(topic.config.get("retention.ms", "604800000"))
    rolled = int(topic.config.get("segment.ms", "604800000"))
    if "delete" in policy and kept >= 0:
        last = datetime.fromtimestamp(min(now + (kept + rolled) / 1000, 253_402_300_799), UTC)
        return f"Kafka deletes its messages by age, at the latest at {last.isoformat(timespec='seconds')}"
    if "compact" in policy:
        return "it is compacted: a message stays until its writer sends a record of the key without a value"
    return "its messages are never deleted by age: their owner deletes them (`kafka-delete-records.sh`)"


def _findings(facts: Facts, topology: Topology) -> Iterator[str]:
    same = [each for each in facts.erased if each.mark == facts.mark]
    held = [each for each in facts.counted.values() if each.keys]
    known = len(facts.counted) == len(topology.stores)
    if same:
        yield _before(same[-1])
    if held:
        yield f"the key has state in {count_of(len(held), 'store')}" + (", again" if same else "")
    elif known:
        yield "no store has state of the key now; other places may have copies of former state"
    for store in topology.stores:
        if store.name not in topology.logged:
            yield f"store `{store.name}` has no changelog: its state is deleted, and there is no log to compact"
    if topology.repartitions:
        names = quoted(spec.topic for spec in topology.repartitions)
        yield f"messages go on under other keys through {names}: state of these keys is not erased"
    for name in _staying(topology):
        if name in facts.topics:
            yield f"messages in {name} stay: {expiry(facts.topics[name], facts.now)}"
    for name, place in _sinks(topology).items():
        yield f"what sink {name} has stored{f' in {place}' if place else ''} stays: delete it in that system"
    yield "a message of the key that arrives later makes new state; erase the key again then"


def _before(erasure: ErasureFacts) -> str:
    moment = datetime.fromtimestamp(erasure.begun_at, UTC).isoformat(timespec="seconds")
    if erasure.proven:
        return f"the key was erased before, at {moment}; all places are searched again"
    state = "could not be proven" if erasure.finished else "was not completed"
    return f"an erasure of the key that began at {moment} {state}; all places are searched again"
