"""Plan ``deploy``: start the defined version if it can use the existing state; roll back if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.processors.engine import provisioning, same_partitioner, table_topics
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import count_of, quoted
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, read_facts, selected
from holdfast.processors.lifecycle.plans.facts.shape import shape_of
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Deploy
from holdfast.processors.lifecycle.plans.slots import FIRST_SLOTS, slots_of
from holdfast.processors.lifecycle.plans.stages import DeleteTopic, MakeRelease, ProveVersion, RunProcessor, Stage
from holdfast.processors.lifecycle.plans.store_words import times_of
from holdfast.processors.lifecycle.verbs.releases import provision
from holdfast.processors.lifecycle.verbs.releases.compatibility import Verdict, compare

#: Maximum seconds to watch a new version after all its workers run. The watch ends earlier if every partition has
#: committed input or has no lag.
SETTLE_S = 10.0
#: Number of last messages of each input topic with which a new version is tested.
PROVEN_MESSAGES = 100
#: Maximum seconds for filling a changelog from local state.
RESEED_S = 3_600.0


def read(request: Deploy, source: FactSource, topology: Topology) -> Facts:
    """Reads the facts for the plan, including releases, settings, dropped changelogs, and keys of joined topics."""
    name, given_up = request.processor, [changelog_topic(request.processor, store) for store in request.dropped]
    facts = provision.with_keys(read_facts(topology, source, releases=True, also=given_up), source, topology)
    return replace(facts, workers=source.workers(name), settings=source.settings(name))


def plan(request: Deploy, facts: Facts, topology: Topology) -> Plan:
    """The plan that starts or replaces a version; refused if the version cannot use the existing state."""
    verdicts = _verdicts(request, facts, topology)
    given_up = _given_up(request, facts, verdicts)
    begun_anew = {each.changelog for each in verdicts if each.change == "new" and each.changelog in given_up}
    there = {name: each for name, each in facts.topics.items() if name not in begun_anew}
    decided = provisioning.plan(topology, there, facts.brokers, facts.others)
    basis = _basis(facts, topology)
    parted = same_partitioner.judge(topology, there, facts.keys)
    refusals: tuple[provisioning.Refusal | same_partitioner.Parted, ...] = (
        *decided.refusals,
        *(each for each in parted if each.is_refused),
    )
    refused = (
        next((_refusal(each) for each in verdicts if each.refused), None)
        or _drops_nothing(request, facts, topology, verdicts)
        or next((Refused(each.sentence, each.action, {"topic": each.topic}) for each in refusals), None)
        or _lost_changelog(facts, topology, verdicts)
    )
    changed_first = sorted(verdicts, key=lambda each: each.change == "same")
    why = "a proof has no rows of global tables" if topology.global_tables else "its definition says `prove=False`"
    unproven = () if topology.prove else (f"the version is not proven first: {why}",)
    told = (*(each.sentence for each in changed_first), *times_of(topology.stores))
    warned = (
        *table_topics.table_warnings(topology, there),
        *(each.text for each in parted if not each.is_refused),
    )
    changed = tuple(f"setting {each}" for each in facts.settings)
    findings = (*_of_instances(facts), *changed, *told, *warned, *_of_code(facts), *unproven)
    if refused is not None:
        return Plan(request=request, verdict=refused, findings=findings, basis=basis)
    created = provision.stages_of(decided)
    wanted = slots_wanted(facts)
    if not created and not given_up and _as_wanted(facts, topology, wanted):
        verdict = NothingToDo(f"Version {topology.code_version} already runs in all slots.")
        return Plan(request=request, verdict=verdict, findings=findings, basis=basis)
    change = _change(facts, topology) + _of_workers(facts, wanted)
    return Plan(
        request=request,
        verdict=Ready(f"run {change}."),
        stages=_stages(request, facts, topology, verdicts, created, given_up, wanted),
        findings=findings,
        kept=("Input offsets, and state and changelog of every store that is not listed under Deleted.",),
        deleted=tuple(_deleted(name, facts) for name in given_up),
        undo=_undo(facts, topology, verdicts),
        basis=basis,
    )


def _verdicts(request: Deploy, facts: Facts, topology: Topology) -> tuple[Verdict, ...]:
    """The verdict on each store (can the new version use its state?); empty if no earlier version is recorded."""
    if facts.released is None:
        return ()
    after = shape_of(topology, {name: each.partitions for name, each in facts.topics.items()})
    # An interrupted deployment of this same version may already have created changelogs of its new stores.
    # These changelogs have only records of this version, so they are used as they are.
    begun = facts.deployed == topology.code_version
    left = {} if begun else {name: records_of(name, facts) for name in facts.topics}
    return compare(topology.processor, facts.released.shape, after, dropped=request.dropped, left=left)


def _given_up(request: Deploy, facts: Facts, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """The changelogs to delete: they exist, and ``--drop`` names their stores, which the new version does not use."""
    in_use = {each.store for each in verdicts if each.change not in ("new", "removed")}
    named = [changelog_topic(request.processor, store) for store in request.dropped if store not in in_use]
    return tuple(dict.fromkeys(name for name in named if name in facts.topics))


def _drops_nothing(request: Deploy, facts: Facts, topology: Topology, verdicts: Sequence[Verdict]) -> Refused | None:
    """Refuses ``--drop`` for a store that the new version uses, or that never existed."""
    used = {store.name for store in topology.stores} - {each.store for each in verdicts if each.change == "new"}
    for store in request.dropped:
        if store in used:
            return Refused(
                f"Version {topology.code_version} uses store `{store}`, so a deployment cannot drop it.",
                "Remove it from the definition, or delete its keys: `holdfast apply clear "
                f"{topology.processor} --store {store} --all`.",
                {"store": store},
            )
        known = any(each.store == store for each in verdicts)
        if not known and changelog_topic(topology.processor, store) not in facts.topics:
            return Refused(
                f"Store `{store}` does not exist: neither version has it, and it has no changelog.",
                "Correct the name after `--drop`, or leave it out.",
                {"store": store},
            )
    return None


def _lost_changelog(facts: Facts, topology: Topology, verdicts: Sequence[Verdict]) -> Refused | None:
    """Refuses to deploy if a changelog that had records is missing, because an empty changelog would replace it."""
    fresh = {each.store for each in verdicts if each.change in ("new", "changelog on")}
    for spec in topology.changelogs:
        read = any(at > 0 for name in topology.inputs_of(spec.store) for at in facts.committed.get(name, {}).values())
        known = facts.released is not None and spec.store not in fresh
        if known and read and spec.topic.name not in facts.topics:
            return Refused(
                f"Changelog {spec.topic.name} of store `{spec.store}` is missing, although input was processed. A new "
                "changelog would be empty and would lack its state.",
                f"With local state: `holdfast apply backfill {topology.processor} --store {spec.store} --from local`. "
                f"Else, with a warehouse snapshot: `holdfast apply restore {topology.processor} --at latest`. Else "
                f"build all state again: `holdfast apply clear {topology.processor} --all --rewind earliest`.",
                {"store": spec.store, "topic": spec.topic.name},
            )
    return None


def _refusal(verdict: Verdict) -> Refused:
    return Refused(verdict.sentence, verdict.action, {"store": verdict.store})


def slots_wanted(facts: Facts) -> tuple[str, ...]:
    """The slots (one for each worker) that the deploy runs.

    Their number comes from the settings. Without this setting, the slots stay as deployed; a first deploy has one slot.
    """
    if facts.workers is not None:
        return slots_of(facts.workers)
    return FIRST_SLOTS if facts.deployment is None else facts.deployment.slots


def _of_workers(facts: Facts, wanted: Sequence[str]) -> str:
    before = 0 if facts.deployment is None else len(facts.deployment.slots) + len(facts.beyond)
    if len(wanted) == max(before, 1):
        return ""
    return f" in {count_of(len(wanted), 'worker')}" + (f" in place of {before}" if before else "")


def _as_wanted(facts: Facts, topology: Topology, wanted: Sequence[str]) -> bool:
    """Whether nothing has to be changed: this release already runs in the wanted slots, with the present settings.

    A slot is the place of one worker.
    """
    version = topology.code_version
    right = (
        not facts.settings
        and facts.working
        and all(each.code_version == version and not each.paused for each in facts.instances)
    )
    recorded = facts.desired == "deployed" and facts.deployed == version
    meant = recorded and {each.slot for each in facts.instances} == set(wanted)
    released = None if facts.released is None else facts.released.release_id
    return right and meant and (facts.code is None or facts.code.release_id == released)


def _stages(
    request: Deploy,
    facts: Facts,
    topology: Topology,
    verdicts: Sequence[Verdict],
    created: Sequence[Stage],
    given_up: Sequence[str],
    slots: tuple[str, ...],
) -> tuple[Stage, ...]:
    version, code = topology.code_version, facts.code
    anew = [each.changelog for each in verdicts if each.change == "new" and each.changelog in given_up]
    release = None if code is None else code.release_id
    back = _back_to(facts)
    empty = tuple(each.store for each in verdicts if each.change == "new")
    changed: list[Stage] = [*(_delete(name) for name in given_up if name in anew), *created]
    stages: list[Stage] = []
    if code is not None and release is not None:
        how = f"is not copied: {code.why_not}" if code.why_not else "is copied for a later rollback"
        stages.append(MakeRelease(f"record release {release}; its code {how}", release, version))
    proof = _proof(facts, topology, release)
    # The test (proof) comes before any change of the processor. Only the release is recorded before it, because the
    # test runs the release's code.
    stages = [*stages, *proof, *changed] if proof else [*changed, *stages]
    together = any(each.change == "regrouped" for each in verdicts)
    first = "stop every worker, because two versions with other tasks must not run beside each other; then " * together
    change = _change(facts, topology) + _of_workers(facts, slots)
    says = f"{first}run {change}, and wait until it processes every input partition"
    if back is not None and facts.released is not None:
        says += f"; if it fails, roll back to {facts.released.code_version}"
    run = RunProcessor(
        says,
        version,
        request.timeout_s,
        begin_empty=empty,
        release_id=release,
        back_to=back,
        settle_s=0.0 if release is None else SETTLE_S,
        together=together,
        slots=slots,
        fresh_settings=True,
        back_slots=() if facts.deployment is None else facts.deployment.slots,
    )
    filled = tuple(each.store for each in verdicts if each.change == "changelog on")
    if filled:
        says = f"start it paused; it fills the changelog of store {quoted(filled)} from local state"
        changes = {"says": says, "timeout_s": RESEED_S, "paused": True, "reseed": filled, "settle_s": 0.0}
        stages.append(msgspec.structs.replace(run, **changes))
    stages.append(run)
    return (*stages, *(_delete(name) for name in given_up if name not in anew))


def _proof(facts: Facts, topology: Topology, release: str | None) -> tuple[ProveVersion, ...]:
    """The stage that tests a release on the last messages before workers run it; empty if there is nothing to test."""
    former = facts.released
    if former is None or release in (None, former.release_id) or not topology.prove or not facts.running:
        return ()
    says = (
        f"run version {topology.code_version} on the last {PROVEN_MESSAGES} messages of each input in a process of its "
        f"own, without writing to Kafka; stop if a message fails that {former.code_version} processes"
    )
    return (
        ProveVersion(
            says,
            topology.code_version,
            release,
            former.release_id if former.copied else None,
            former.code_version,
            # The repartition topics are left out, because the tested steps write to them.
            tuple(spec.name for spec in topology.sources),
            PROVEN_MESSAGES,
        ),
    )


def _delete(topic: str) -> DeleteTopic:
    return DeleteTopic(f"delete changelog {topic} of a dropped store", topic)


def _back_to(facts: Facts) -> str | None:
    """The release to start if the new release fails; None if it is the same release, or if its code was not copied."""
    former = facts.released
    if former is None or not former.copied or (facts.code is not None and facts.code.release_id == former.release_id):
        return None
    return former.release_id


def _change(facts: Facts, topology: Topology) -> str:
    version = topology.code_version
    before = facts.deployed if facts.released is None else facts.released.code_version
    return f"version {version}" if before in (None, version) else f"version {version} in place of {before}"


def _of_instances(facts: Facts) -> tuple[str, ...]:
    return tuple(
        f"slot {each.slot} is {'paused' if each.paused else each.phase or 'silent'}, version "
        f"{each.code_version or 'unknown'}"
        if each.alive
        else f"slot {each.slot} has no process"
        for each in facts.instances
    )


def _of_code(facts: Facts) -> tuple[str, ...]:
    """Texts for the plan about versions whose stores were not recorded, or whose code was not copied."""
    found = []
    if facts.released is None and facts.deployed is not None:
        found.append(
            f"the stores of version {facts.deployed} were not recorded at its deployment, so the two "
            "versions cannot be compared"
        )
    if facts.code is not None and facts.code.why_not:
        found.append(f"the code is not copied ({facts.code.why_not}): a later rollback to this version is not possible")
    if facts.code is not None and facts.code.left:
        found.append(
            f"{quoted(facts.code.left)} {'is' if len(facts.code.left) == 1 else 'are'} read from the project and not "
            "copied: a rollback uses what is there then. Open it by `Path(__file__).parent` to have it copied"
        )
    if facts.code is not None and facts.code.unseen:
        found.append(
            f"what these lines use is known only at runtime, so it may not be copied: {', '.join(facts.code.unseen)}. "
            "A rollback uses what the project has then. Write the name in full, or make the code a package"
        )
    if facts.released is not None and not facts.released.copied:
        found.append(
            f"the code of version {facts.released.code_version} was not copied: if the new version fails, it is not "
            "rolled back automatically"
        )
    return tuple(found)


def _undo(facts: Facts, topology: Topology, verdicts: Sequence[Verdict]) -> str:
    former, stop = facts.released, f"`holdfast apply stop {topology.processor}`"
    if former is None:
        return stop
    same = facts.code is None or facts.code.release_id == former.release_id
    if former.code_version == topology.code_version and same:
        version = former.code_version
        return f"Not needed: the former version is {version}, too. To stop it: {stop}"
    gone = [each.store for each in verdicts if each.change == "removed"]
    lost = (
        f" The input that {topology.code_version} commits is missing in store {quoted(gone)} of version "
        f"{former.code_version}, which then has to be built again."
        if gone
        else ""
    )
    if former.copied:
        return f"`holdfast rollback {topology.processor} --to {former.release_id}`.{lost}"
    return f"Check out the code of version {former.code_version} and deploy it.{lost}"


def records_of(topic: str, facts: Facts) -> int:
    """Number of records in a topic according to its offsets, which is an upper bound after compaction."""
    starts, ends = facts.starts.get(topic, {}), facts.ends.get(topic, {})
    return sum(max(0, end - starts.get(number, 0)) for number, end in ends.items())


def _deleted(topic: str, facts: Facts) -> str:
    return f"changelog {topic} with up to {count_of(records_of(topic, facts), 'record')}: the state of its store"


def _basis(facts: Facts, topology: Topology) -> dict[str, Any]:
    return {
        "topics": selected(facts.topics, [spec.name for spec in topology.topics()]),
        "deployed": facts.deployed,
        "defined": topology.code_version,
        "release": None if facts.code is None else facts.code.release_id,
        "settings": facts.settings,
        "works": None if facts.released is None else facts.released.release_id,
        "slot": {
            each.slot: {"runs": each.alive, "version": each.code_version, "paused": each.paused}
            for each in facts.instances
        },
    }
