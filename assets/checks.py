"""Checks that several assets share, and those that run apart from materialisations.

Invariants:
    - Each result says what was seen and what was expected, as metadata and as a sentence.
"""

import time
from collections.abc import Iterable

import dagster as dg

from assets import keys
from assets.ports import Cluster
from infra.kafka.records import TopicFacts, TopicSpec
from infra.kafka.topics import Topics
from processors.lifecycle.compaction import CompactionFacts, judge_compaction, read_compaction
from processors.registration import BrokenDefinition, ProcessorDefinition
from processors.topology import Topology

COMPACTION = "compaction_healthy"
IMPORTABLE = "importable"
#: A topic that was just made is known to every broker after so many seconds at most.
SETTLE_S = 15.0


def settled_facts(topics: Topics, topology: Topology) -> dict[str, TopicFacts]:
    """The facts of a processor's topics once all are known; what is missing after a while is left out."""
    names = [spec.name for spec in topology.topics()]
    deadline = time.monotonic() + SETTLE_S
    while True:
        facts = topics.describe(names)
        if len(facts) == len(set(names)) or time.monotonic() > deadline:
            return facts
        time.sleep(0.2)


def config_result(key: dg.AssetKey, name: str, expected: TopicSpec, seen: TopicFacts | None) -> dg.AssetCheckResult:
    """Whether a changelog has the config entries that state needs."""
    if seen is None:
        return dg.AssetCheckResult(
            asset_key=key,
            check_name=name,
            passed=False,
            description=f"Topic {expected.name} is not there; materialise this asset to create it.",
            metadata={"drifted_entries": len(expected.config)},
        )
    drift = {
        entry: (seen.config.get(entry, "unset"), value)
        for entry, value in expected.config.items()
        if seen.config.get(entry) != value
    }
    text = "; ".join(f"{entry} is {found}, expected {value}" for entry, (found, value) in drift.items())
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=name,
        passed=not drift,
        description=f"{text}. Materialise this asset to repair it." if drift else "",
        metadata={"drifted_entries": len(drift), **{entry: found for entry, (found, _) in drift.items()}},
    )


def compaction_check_keys(definition: ProcessorDefinition) -> list[dg.AssetCheckKey]:
    """The checks that `compaction_check` makes."""
    stores = [changelog.store for changelog in definition.topology.changelogs]
    return [dg.AssetCheckKey(keys.changelog_key(definition.name, store), COMPACTION) for store in stores]


def compaction_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """A check of each changelog's compaction settings and size, run by schedule."""
    topology = definition.topology
    by_key = {keys.changelog_key(definition.name, spec.store): spec for spec in topology.changelogs}

    @dg.multi_asset_check(
        name=f"{keys.safe(definition.name)}_compaction_checks",
        specs=[
            dg.AssetCheckSpec(
                COMPACTION, asset=key, description="It is compacted, its config has not drifted, no transaction hangs."
            )
            for key in by_key
        ],
        can_subset=True,
    )
    def compaction_checks(
        context: dg.AssetCheckExecutionContext, cluster: dg.ResourceParam[Cluster]
    ) -> Iterable[dg.AssetCheckResult]:
        topics = cluster.topics()
        for key in sorted(context.selected_asset_check_keys):
            spec = by_key[key.asset_key].topic
            yield compaction_result(key.asset_key, spec, read_compaction(topics, spec.name))

    return compaction_checks


def compaction_result(key: dg.AssetKey, expected: TopicSpec, facts: CompactionFacts) -> dg.AssetCheckResult:
    """What `judge_compaction` says of a changelog, as a warning: nothing waits for it."""
    problems = judge_compaction(expected, facts)
    text = "\n".join(f"{problem.sentence} {problem.action}" for problem in problems)
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=COMPACTION,
        passed=not problems,
        severity=dg.AssetCheckSeverity.WARN,
        description=text,
        metadata={
            "offset_span": facts.span,
            "drifted_entries": sum(problem.kind == "drift" for problem in problems),
            "hanging_partitions": sum(problem.kind == "hanging" for problem in problems),
            "partitions": len(facts.partitions),
        },
    )


def broken_definition(broken: BrokenDefinition) -> tuple[dg.AssetSpec, dg.AssetChecksDefinition]:
    """What stands in the graph for a definition that can't be imported: its error, and a check that fails."""
    key = keys.broken_key(broken.target)
    lines = broken.error.strip().splitlines() or ["no reason was given"]
    spec = dg.AssetSpec(
        key,
        description=f"{broken.target} can't be imported: {lines[-1]}\n\n```\n{broken.error.strip()}\n```",
        group_name=keys.BROKEN_GROUP,
        kinds={"python"},
        tags=keys.tags(keys.PROCESSORS),
        metadata={"target": broken.target, "error": dg.MetadataValue.md(f"```\n{broken.error.strip()}\n```")},
    )

    @dg.asset_check(asset=key, name=IMPORTABLE, description="The definition can be imported.")
    def importable() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(
            passed=False,
            description=f"{lines[-1]} Correct {broken.target} or the setting HOLDFAST_PROCESSORS, then reload.",
            metadata={"target": broken.target},
        )

    return spec, importable
