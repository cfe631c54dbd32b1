"""Plan ``provision``: create missing topics, and repair changelogs whose configuration is not the expected one."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.processors.engine import provisioning, same_partitioner, table_topics
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, read_facts, selected
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Provision
from holdfast.processors.lifecycle.plans.stages import CreateTopic, SetTopicConfig, Stage


def read(request: Provision, source: FactSource, topology: Topology) -> Facts:
    """Reads the data that the plan needs, including the newest keys of topics that are joined or share a store."""
    return with_keys(read_facts(topology, source), source, topology)


def with_keys(facts: Facts, source: FactSource, topology: Topology) -> Facts:
    """Adds the newest messages' keys of topics that share state. The keys show whether one partitioner wrote them."""
    return replace(facts, keys=source.newest_keys(same_partitioner.judged_topics(topology, facts.topics)))


def plan(request: Provision, facts: Facts, topology: Topology) -> Plan:
    """The plan that creates and repairs topics; it deletes no topic and shortens no retention."""
    decided = provisioning.plan(topology, facts.topics, facts.brokers, facts.others)
    names = [spec.name for spec in topology.topics()]
    stages = stages_of(decided)
    parted = same_partitioner.judge(topology, facts.topics, facts.keys)
    refusals: tuple[provisioning.Refusal | same_partitioner.Parted, ...] = (
        *decided.refusals,
        *(each for each in parted if each.is_refused),
    )
    told = (each.text for each in parted if not each.is_refused)
    warned = (*table_topics.table_warnings(topology, facts.topics), *told)
    fine = tuple(f"{name} exists with the right settings" for name in names if name in _untouched(facts, stages))
    findings = (*warned, *fine)
    basis = {"topics": selected(facts.topics, names), "brokers": facts.brokers}
    if refusals:
        first = refusals[0]
        rest = tuple(f"{refusal.sentence} {refusal.action}" for refusal in refusals)
        verdict: Refused | Ready | NothingToDo = Refused(first.sentence, first.action, {"topic": first.topic})
        return Plan(request=request, verdict=verdict, findings=(*rest, *findings), basis=basis)
    if not stages:
        verdict = NothingToDo(f"All {count_of(len(names), 'topic')} exist with the right settings.")
        return Plan(request=request, verdict=verdict, findings=findings, basis=basis)
    created = sum(isinstance(stage, CreateTopic) for stage in stages)
    repaired = len(stages) - created
    parts = [f"create {count_of(created, 'topic')}"] if created else []
    parts += [f"repair the configuration of {count_of(repaired, 'topic')}"] if repaired else []
    return Plan(
        request=request,
        verdict=Ready(f"{' and '.join(parts)}."),
        stages=stages,
        findings=findings,
        kept=(
            "All records: no topic is deleted, no retention is shortened, no partition count is changed.",
            *decided.kept,
        ),
        undo="Delete the created topics while they are empty; set repaired entries back to the former values above.",
        basis=basis,
    )


def repairs(facts: Facts, topology: Topology) -> tuple[SetTopicConfig, ...]:
    """The stages that repair the configuration of changelogs, for a verb that starts the deployed version again.

    A worker does not start while a changelog has another ``cleanup.policy``, because Kafka would delete its state.
    Empty if the files define another version: its changelogs are not those of the deployed one.
    """
    if facts.deployed != topology.code_version:
        return ()
    decided = stages_of(provisioning.plan(topology, facts.topics, facts.brokers, facts.others))
    return tuple(stage for stage in decided if isinstance(stage, SetTopicConfig))


def stages_of(decided: provisioning.ProvisionPlan) -> tuple[Stage, ...]:
    """Converts the needed changes of topics to the stages of a plan."""
    stages: list[Stage] = []
    for stage in decided.stages:
        match stage:
            case provisioning.CreateTopic(spec=spec):
                config = dict(spec.config)
                stages.append(CreateTopic(stage.sentence(), spec.name, spec.partitions, spec.replication, config))
            case provisioning.RepairConfig(topic=topic, expected=expected):
                stages.append(SetTopicConfig(stage.sentence(), topic, dict(expected)))
    return tuple(stages)


def _untouched(facts: Facts, stages: tuple[Stage, ...]) -> set[str]:
    touched = {stage.name for stage in stages if isinstance(stage, CreateTopic | SetTopicConfig)}
    return set(facts.topics) - touched
