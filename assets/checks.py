"""Checks that several assets share, and those that run apart from materialisations.

Invariants:
    - Each result says what was seen and what was expected, as metadata and as a sentence.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.pictures import CHECKS_MAX, CompactionSeen, changelog_picture
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.assets.rehearsals import measured_rate
from holdfast.infra.kafka.records import TopicFacts, TopicSpec
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.waiting import wait_until
from holdfast.processors.engine.changelog.config import drift
from holdfast.processors.engine.serving.client import ProcessorClient
from holdfast.processors.engine.serving.status import TaskStatus
from holdfast.processors.engine.topology import ChangelogSpec, Topology
from holdfast.processors.lifecycle.health.compaction import RESTORE_TARGET_S, CompactionFacts, judge_compaction
from holdfast.processors.lifecycle.health.compaction_facts import look_closer, read_compaction
from holdfast.processors.registration import BrokenDefinition, ProcessorDefinition

COMPACTION = "compaction_healthy"
IMPORTABLE = "importable"
MIB = 1024 * 1024
#: A topic that was just made is known to every broker after so many seconds at most.
SETTLE_S = 15.0
#: Pause between two looks at them, seconds.
SETTLE_CHECK_EVERY_S = 0.2


def settled_facts(topics: Topics, topology: Topology) -> dict[str, TopicFacts]:
    """The facts of a processor's topics once all are known; what is missing after a while is left out."""
    names = [spec.name for spec in topology.topics()]
    facts: dict[str, TopicFacts] = {}

    def settled() -> bool:
        nonlocal facts
        facts = topics.describe(names)
        return len(facts) == len(set(names))

    wait_until(settled, SETTLE_S, every_s=SETTLE_CHECK_EVERY_S)
    return facts


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
    drifted = {
        entry: (seen.config.get(entry, "unset"), value) for entry, value in drift(expected.config, seen.config).items()
    }
    text = "; ".join(f"{entry} is {found}, expected {value}" for entry, (found, value) in drifted.items())
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=name,
        passed=not drifted,
        description=f"{text}. Materialise this asset to repair it." if drifted else "",
        metadata={"drifted_entries": len(drifted), **{entry: found for entry, (found, _) in drifted.items()}},
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
                COMPACTION,
                asset=key,
                description="It is compacted and stays so, its config has not drifted, no transaction hangs, and a "
                "restore of all of it takes no longer than the target.",
            )
            for key in by_key
        ],
        can_subset=True,
    )
    def compaction_checks(
        context: dg.AssetCheckExecutionContext,
        cluster: dg.ResourceParam[Cluster],
        lifecycle: dg.ResourceParam[Lifecycle],
    ) -> Iterable[dg.AssetCheckResult]:
        chosen = [by_key[key.asset_key] for key in sorted(context.selected_asset_check_keys)]
        for result in compaction_results(definition.name, chosen, cluster, lifecycle, warn=context.log.warning):
            yield _with_picture(result, context.instance)

    return compaction_checks


def _with_picture(result: dg.AssetCheckResult, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
    """The result with what this and the last checks saw, drawn."""
    assert result.asset_key is not None
    key = dg.AssetCheckKey(result.asset_key, COMPACTION)
    seen = _compaction_seen(result.metadata, datetime.now(UTC), passed=result.passed)
    history = [] if seen is None else [seen]
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=CHECKS_MAX - 1):
        event = None if record.event is None else record.event.dagster_event
        if event is not None and isinstance(event.event_specific_data, dg.AssetCheckEvaluation):
            before = event.event_specific_data
            moment = datetime.fromtimestamp(record.create_timestamp, UTC)
            one = _compaction_seen(before.metadata, moment, passed=before.passed)
            history += [] if one is None else [one]
    picture = changelog_picture(history)
    return result.with_metadata({**result.metadata, "picture": dg.MetadataValue.md(picture)}) if picture else result


def _compaction_seen(metadata: Mapping[str, dg.MetadataValue], at: datetime, *, passed: bool) -> CompactionSeen | None:
    """What one check's metadata says."""
    span, live = (metadata[name].value if name in metadata else None for name in ("offset_span", "live_keys"))
    if not isinstance(span, int):
        return None
    return CompactionSeen(at, span, live if isinstance(live, int) else None, passed)


def compaction_results(
    processor: str,
    changelogs: Sequence[ChangelogSpec],
    cluster: Cluster,
    lifecycle: Lifecycle,
    *,
    warn: Callable[[str], None],
) -> Iterator[dg.AssetCheckResult]:
    """Look at changelogs, one after the other, and say of each how its compaction does; ``warn`` is told what is
    not known.
    """
    topics, workers = cluster.topics(), _tasks_of(processor, lifecycle)
    for changelog in changelogs:
        spec = changelog.topic
        facts = look_closer(
            read_compaction(topics, spec.name), topics, client_config=cluster.client_config, workers=workers
        )
        rehearsed = None if facts.rate is None or facts.rate.measured else measured_rate(processor, lifecycle)
        if rehearsed is not None and facts.rate is not None:
            facts = replace(facts, rate=replace(facts.rate, records_per_s=rehearsed, measured=True))
        for sentence in facts.unknown:
            warn(f"{spec.name}: {sentence}")
        key = keys.changelog_key(processor, changelog.store)
        yield compaction_result(key, spec, facts, processor=processor, target_s=lifecycle.restore_target_s)


def _tasks_of(processor: str, lifecycle: Lifecycle) -> list[tuple[TaskStatus, ...]]:
    """What each worker that runs tells of its tasks."""
    deployed = lifecycle.world.registry.deployment(processor)
    slots = ("0",) if deployed is None else deployed.slots
    statuses = [ProcessorClient(processor, slot, lifecycle.paths).status() for slot in slots]
    return [status.tasks for status in statuses if status is not None]


def compaction_result(
    key: dg.AssetKey,
    expected: TopicSpec,
    facts: CompactionFacts,
    *,
    processor: str = "",
    target_s: float = RESTORE_TARGET_S,
) -> dg.AssetCheckResult:
    """What `judge_compaction` says of a changelog, as a warning: nothing waits for it."""
    problems = judge_compaction(expected, facts, processor=processor, restore_target_s=target_s)
    commands = dict.fromkeys(problem.command for problem in problems if problem.command)
    metadata: dict[str, dg.MetadataValue] = {
        name: dg.MetadataValue.float(float(value)) if isinstance(value, float) else dg.MetadataValue.int(value)
        for name, value in _numbers(facts).items()
        if value is not None
    }
    counted = {"drift": "drifted_entries", "hanging": "hanging_partitions", "overdue": "overdue_partitions"}
    for kind, name in counted.items():
        metadata[name] = dg.MetadataValue.int(sum(problem.kind == kind for problem in problems))
    if commands:
        metadata["remedy"] = dg.MetadataValue.md("\n".join(f"    {command}" for command in commands))
    if facts.unknown:
        metadata["unknown"] = dg.MetadataValue.md("\n".join(f"- {sentence}" for sentence in facts.unknown))
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=COMPACTION,
        passed=not problems,
        severity=dg.AssetCheckSeverity.WARN,
        description="\n".join(problem.text for problem in problems),
        metadata=metadata,
    )


def _numbers(facts: CompactionFacts) -> dict[str, int | float | None]:
    """The numbers that are worth a line over time; None for those that are not known."""
    keys_known = [part.keys for part in facts.partitions if part.keys is not None]
    return {
        "offset_span": facts.span,
        "partitions": len(facts.partitions),
        "records": facts.records,
        "size_mib": None if facts.size_bytes is None else round(facts.size_bytes / MIB, 3),
        "live_keys": sum(keys_known) if keys_known and len(keys_known) == len(facts.partitions) else None,
        "restore_seconds": None if facts.restore_s is None else round(facts.restore_s, 3),
        "restore_records_per_s": None if facts.rate is None else round(facts.rate.records_per_s, 1),
        "tested_records": sum(part.tested for part in facts.partitions),
        "overdue_records": sum(part.overdue for part in facts.partitions),
        "held_back_offsets": sum(part.high_watermark - part.last_stable for part in facts.partitions),
        "replication": facts.replication,
        "store_mib": None if facts.space is None else round(facts.space.size_bytes / MIB, 3),
        "store_amplification": None if facts.space is None else round(facts.space.amplification, 3),
    }


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
