"""Plan ``put-back``: create a deleted topic again from its archived copy, with its configuration and records."""

# tidy: allow-crumb because each verb has a file of its own

from __future__ import annotations

from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.orphans import Archived
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import PutBack
from holdfast.processors.lifecycle.plans.stages import PutTopicBack


def plan(request: PutBack, copy: Archived | None, *, exists: bool) -> Plan:
    """The plan that creates a topic from its newest copy; refused if there is no copy, or if the topic exists."""
    topic = request.topic
    basis = {"archived_copy": None if copy is None else copy.id, "exists": exists}
    if copy is None:
        refused = Refused(
            f"The archive has no copy of topic {topic}.",
            "List the copies: `ls` in folder `topic` of the archive, which `HOLDFAST_ARCHIVE` names.",
            {"topic": topic},
        )
        return Plan(request=request, verdict=refused, basis=basis)
    if exists:
        refused = Refused(
            f"Topic {topic} exists; its records would mix with those of the archive.",
            "If its records are not needed, delete it, then repeat the command.",
            {"topic": topic},
        )
        return Plan(request=request, verdict=refused, basis=basis)
    about = copy.manifest.about
    records = count_of(sum(about["records"].values()), "record")
    return Plan(
        request=request,
        verdict=Ready(f"create topic {topic} again from its copy of {copy.id}."),
        stages=(
            PutTopicBack(
                f"create {topic} with {count_of(about['partitions'], 'partition')}, and write {records}",
                topic,
                copy.id,
            ),
        ),
        findings=("the topic gets another id, and its offsets count from 0",),
        kept=("The archived copy.",),
        undo="Delete the topic.",
        basis=basis,
        after_kill="go on",
    )
