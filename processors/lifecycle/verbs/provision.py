"""Plan ``provision``: the topics that are missing, and the changelogs whose configuration drifted."""

from __future__ import annotations

from holdfast.processors.engine import required_topics
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts import Facts, selected
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Provision
from holdfast.processors.lifecycle.plans.stages import CreateTopic, SetTopicConfig, Stage


def plan(request: Provision, facts: Facts, topology: Topology) -> Plan:
    """Decide what to create and repair; nothing is deleted or shrunk."""
    decided = required_topics.plan(topology, facts.topics, facts.brokers)
    names = [spec.name for spec in topology.topics()]
    stages = stages_of(decided)
    findings = tuple(f"{name} is there, as it should be" for name in names if name in _untouched(facts, stages))
    basis = {"topics": selected(facts.topics, names), "brokers": facts.brokers}
    if decided.refusals:
        first = decided.refusals[0]
        rest = tuple(f"{refusal.sentence} {refusal.action}" for refusal in decided.refusals)
        verdict: Refused | Ready | NothingToDo = Refused(first.sentence, first.action, {"topic": first.topic})
        return Plan(request=request, verdict=verdict, findings=(*rest, *findings), basis=basis)
    if not stages:
        verdict = NothingToDo(f"All {len(names)} topics are there, as state needs them.")
        return Plan(request=request, verdict=verdict, findings=findings, basis=basis)
    created = sum(isinstance(stage, CreateTopic) for stage in stages)
    repaired = len(stages) - created
    parts = [f"{created} topic(s) to create"] * bool(created) + [f"{repaired} configuration(s) to repair"] * bool(
        repaired
    )
    return Plan(
        request=request,
        verdict=Ready(f"{', '.join(parts)}."),
        stages=stages,
        findings=findings,
        kept=(
            "Every record: nothing is deleted, no retention is shrunk, no partition count is changed.",
            *decided.kept,
        ),
        undo="Delete the created topics while they are empty; set repaired entries back to what is found above.",
        basis=basis,
    )


def stages_of(decided: required_topics.ProvisionPlan) -> tuple[Stage, ...]:
    """Provisioning's own stages as stages of a plan."""
    stages: list[Stage] = []
    for stage in decided.stages:
        match stage:
            case required_topics.CreateTopic(spec=spec):
                config = dict(spec.config)
                stages.append(CreateTopic(stage.sentence(), spec.name, spec.partitions, spec.replication, config))
            case required_topics.RepairConfig(topic=topic, expected=expected):
                stages.append(SetTopicConfig(stage.sentence(), topic, dict(expected)))
    return tuple(stages)


def _untouched(facts: Facts, stages: tuple[Stage, ...]) -> set[str]:
    touched = {stage.name for stage in stages if isinstance(stage, CreateTopic | SetTopicConfig)}
    return set(facts.topics) - touched
