"""Plan ``rollback``: start an earlier release with the present state, if that release can use this state.

The module ``verbs.releases.compatibility`` compares the earlier release with the present release. A deploy compares
the new version with the running version in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, ReleaseFacts, read_facts
from holdfast.processors.lifecycle.plans.facts.shape import Shape
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Restart, Rollback
from holdfast.processors.lifecycle.plans.stages import RunProcessor
from holdfast.processors.lifecycle.verbs.releases.compatibility import Verdict, compare
from holdfast.processors.lifecycle.verbs.releases.deploy import SETTLE_S, records_of


def read(request: Restart | Rollback, source: FactSource, topology: Topology) -> Facts:
    """Reads the data that the plan needs, including every release, and the changelogs of the releases' stores."""
    known = source.releases(request.processor)
    kept = {store.changelog for each in known for store in each.shape.stores if store.changelog is not None}
    facts = read_facts(topology, source, also=sorted(kept))
    now, before = source.released(request.processor), source.before(request.processor)
    return replace(facts, releases=known, released=now, before=before)


def plan(request: Rollback, facts: Facts, topology: Topology) -> Plan:
    """The plan that starts an earlier release; refused if none exists, or if it cannot use the present state."""
    now = facts.released
    basis = {
        "deployed": facts.deployed,
        "works": None if now is None else now.release_id,
        "releases": [each.release_id for each in facts.releases],
        "before": None if facts.before is None else facts.before.release_id,
    }
    if now is None:
        return Plan(request=request, verdict=_none(facts), basis=basis)
    target = _named(request.to, facts.releases) if request.to else facts.before
    if target is None:
        return Plan(request=request, verdict=_unknown(request, now, facts), basis=basis)
    verdicts = compare(facts.processor, now.shape, _shape_now(target, facts), dropped=(), left=_left(target, facts))
    findings = tuple(each.sentence for each in sorted(verdicts, key=lambda each: each.change == "same"))
    refused = _refused(target, facts, verdicts)
    if refused is not None:
        return Plan(request=request, verdict=refused, findings=findings, basis=basis)
    if _runs(target, now, facts):
        verdict = NothingToDo(f"Release {target.release_id} already runs in all slots.")
        return Plan(request=request, verdict=verdict, findings=findings, basis=basis)
    together = any(each.change == "regrouped" for each in verdicts)
    back = now.release_id if now.copied and now.release_id != target.release_id else None
    version = target.code_version
    first = "stop every worker, because two versions with other tasks must not run beside each other; then " * together
    says = f"{first}run release {target.release_id}, and wait until it processes every input partition"
    says += f"; if it fails, run {now.release_id} again" if back is not None else ""
    run = RunProcessor(
        says,
        version,
        request.timeout_s,
        begin_empty=tuple(each.store for each in verdicts if each.change == "new"),
        release_id=target.release_id,
        back_to=back,
        settle_s=SETTLE_S,
        together=together,
        earlier=True,
    )
    return Plan(
        request=request,
        verdict=Ready(f"run release {target.release_id} in place of {now.release_id}."),
        stages=(run,),
        findings=findings,
        kept=("State, changelogs and input offsets: the earlier release continues from them.",),
        undo=f"`holdfast apply rollback {facts.processor} --to {now.release_id}`",
        seconds=10.0,
        estimate="a stop, a start from local state, and a watch until every partition progresses",
        basis=basis,
        # A killed apply (execution of a plan) must resume this plan. A new plan might go back one release too far,
        # because Holdfast's registry may already record that the earlier release works.
        after_kill="go on",
    )


def _named(name: str, releases: Sequence[ReleaseFacts]) -> ReleaseFacts | None:
    """The release with the id ``name``; None if there is no such release.

    If no release has this id, it is a release of code version ``name``, preferably one that worked.
    """
    of_version = [each for each in releases if each.code_version == name]
    by_id = [each for each in releases if each.release_id == name]
    return next(iter((*by_id, *(each for each in of_version if each.worked), *of_version)), None)


def _shape_now(target: ReleaseFacts, facts: Facts) -> Shape:
    """The recorded topics and stores of the release, with the present number of partitions of each input topic."""
    return replace(
        target.shape, inputs={name: facts.widths.get(name, count) for name, count in target.shape.inputs.items()}
    )


def _left(target: ReleaseFacts, facts: Facts) -> dict[str, int]:
    logs = [each.changelog for each in target.shape.stores if each.changelog is not None]
    return {name: records_of(name, facts) for name in logs if name in facts.topics}


def _refused(target: ReleaseFacts, facts: Facts, verdicts: Sequence[Verdict]) -> Refused | None:
    name, again = facts.processor, f"Check out the code of version {target.code_version} and deploy it: "
    deploy = f"`holdfast apply deploy {name}`."
    fields: dict[str, str | int | float | bool | None] = {"processor": name, "release": target.release_id}
    if not target.copied:
        return Refused(f"The code of release {target.release_id} was not copied.", again + deploy, fields)
    unfit = next((each for each in verdicts if each.refused), None)
    if unfit is not None:
        how = f"Check out the code of version {target.code_version}, then do what its deployment asks for: "
        return Refused(unfit.sentence, how + unfit.action, fields | {"store": unfit.store})
    filled = next((each for each in verdicts if each.change == "changelog on"), None)
    if filled is not None:
        said = f"Store `{filled.store}` of release {target.release_id} has a changelog that only a deployment fills."
        return Refused(said, again + deploy, fields | {"store": filled.store})
    logs = {each.changelog for each in target.shape.stores if each.changelog is not None}
    absent = sorted(topic for topic in {*logs, *target.shape.inputs} if topic not in facts.topics)
    if absent:
        said = f"Release {target.release_id} needs topics that do not exist: {', '.join(absent)}."
        return Refused(said, again + deploy, fields | {"topic": absent[0]})
    return None


def _runs(target: ReleaseFacts, now: ReleaseFacts, facts: Facts) -> bool:
    right = all(each.code_version == target.code_version and not each.paused for each in facts.instances)
    meant = facts.desired == "deployed" and facts.deployed == target.code_version and not facts.beyond
    return facts.working and right and meant and target.release_id == now.release_id


def _none(facts: Facts) -> Refused:
    return Refused(
        f"No release of {facts.processor} is recorded to have worked, so there is none to go back to.",
        f"Deploy the present version: `holdfast apply deploy {facts.processor}`.",
        {"processor": facts.processor},
    )


def _unknown(request: Rollback, now: ReleaseFacts, facts: Facts) -> Refused:
    name, known = facts.processor, ", ".join(each.release_id for each in facts.releases)
    if request.to:
        said = f"{name} has no recorded release {request.to}; its releases are {known or 'none'}."
        return Refused(said, "Name one of these releases or its version after `--to`.", {"processor": name})
    return Refused(
        f"{name} has no release that worked before {now.release_id}; its releases are {known or 'none'}.",
        f"Name one of them after `--to`, or check out the code that you want, and deploy it: `holdfast apply deploy "
        f"{name}`.",
        {"processor": name},
    )
