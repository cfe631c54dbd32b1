"""The check `compaction_healthy` of each changelog, with a bar chart of its values; a schedule runs the check."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.rehearsals import measured_rate
from holdfast.assets.checks.result import CheckResult, check_of_each, worded
from holdfast.assets.pages.pictures import CHECKS_MAX, CompactionSeen, changelog_picture
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.assets.rollouts import clients_of
from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.engine.topology import ChangelogSpec
from holdfast.processors.lifecycle.health.compaction import CompactionFacts, judge_compaction
from holdfast.processors.lifecycle.health.compaction_facts import look_closer, read_compaction

COMPACTION = "compaction_healthy"
MIB = 1024 * 1024


def compaction_check_keys(definition: ProcessorDefinition) -> list[dg.AssetCheckKey]:
    """The keys of the Dagster checks that ``compaction_check`` creates."""
    stores = [changelog.store for changelog in definition.topology.changelogs]
    return [dg.AssetCheckKey(keys.changelog_key(definition.name, store), COMPACTION) for store in stores]


def compaction_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """Defines the check of each changelog's compaction, configuration and size."""

    def results(
        context: dg.AssetCheckExecutionContext,
        changelogs: Sequence[ChangelogSpec],
        cluster: Cluster,
        lifecycle: Lifecycle,
    ) -> Iterator[CheckResult]:
        for found in compaction_results(definition.name, changelogs, cluster, lifecycle, warn=context.log.warning):
            yield _with_picture(found, context.instance)

    return check_of_each(
        f"{keys.safe(definition.name)}_compaction_checks",
        COMPACTION,
        "Kafka compacts the changelog, its config has not drifted, no transaction hangs, and a full restore takes no "
        "longer than the target (`HOLDFAST_RESTORE_TARGET_S`, seconds).",
        {keys.changelog_key(definition.name, spec.store): spec for spec in definition.topology.changelogs},
        results,
    )


def _with_picture(result: CheckResult, instance: dg.DagsterInstance) -> CheckResult:
    """Adds a bar chart to the result, with the number of offsets at this check and at earlier checks."""
    key = dg.AssetCheckKey(result.key, COMPACTION)
    seen = _compaction_seen(result.result().metadata, datetime.now(UTC), passed=result.passed)
    history = [] if seen is None else [seen]
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=CHECKS_MAX - 1):
        event = None if record.event is None else record.event.dagster_event
        if event is not None and isinstance(event.event_specific_data, dg.AssetCheckEvaluation):
            before = event.event_specific_data
            moment = datetime.fromtimestamp(record.create_timestamp, UTC)
            one = _compaction_seen(before.metadata, moment, passed=before.passed)
            history += [] if one is None else [one]
    picture = changelog_picture(history)
    return replace(result, metadata={**result.metadata, "picture": dg.MetadataValue.md(picture)}) if picture else result


def _compaction_seen(metadata: Mapping[str, dg.MetadataValue], at: datetime, *, passed: bool) -> CompactionSeen | None:
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
) -> Iterator[CheckResult]:
    """The results of `compaction_healthy` for these changelogs; ``warn`` logs each fact that could not be read."""
    topics = cluster.topics()
    statuses = [client.status() for client in clients_of(processor, lifecycle)]
    workers = [status.tasks for status in statuses if status is not None]
    for changelog in changelogs:
        spec = changelog.topic
        read = read_compaction(topics, spec.name)
        facts = look_closer(read, topics, client_config=cluster.client_config, workers=workers)
        rehearsed = None if facts.rate is None or facts.rate.measured else measured_rate(processor, lifecycle)
        if rehearsed is not None and facts.rate is not None:
            facts = replace(facts, rate=replace(facts.rate, records_per_s=rehearsed, measured=True))
        for sentence in facts.unknown:
            warn(f"{spec.name}: {sentence}")
        key = keys.changelog_key(processor, changelog.store)
        yield compaction_result(key, spec, facts, processor=processor, target_s=lifecycle.restore_target_s)


def compaction_result(
    key: dg.AssetKey, expected: TopicSpec, facts: CompactionFacts, *, processor: str, target_s: float
) -> CheckResult:
    """Converts the problems found by ``judge_compaction`` to a check result.

    A failure is a warning and blocks no asset.
    """
    problems = judge_compaction(expected, facts, processor=processor, restore_target_s=target_s)
    commands = dict.fromkeys(problem.command for problem in problems if problem.command)
    metadata: dict[str, Any] = {name: value for name, value in _numbers(facts).items() if value is not None}
    counted = {"drift": "drifted_entries", "hanging": "hanging_partitions", "overdue": "overdue_partitions"}
    for kind, name in counted.items():
        metadata[name] = sum(problem.kind == kind for problem in problems)
    if commands:
        metadata["remedy"] = dg.MetadataValue.md("\n".join(f"    {command}" for command in commands))
    if facts.unknown:
        metadata["unknown"] = dg.MetadataValue.md("\n".join(f"- {sentence}" for sentence in facts.unknown))
    lines = [
        worded(each.sentence, action=each.action + (f" Remedy: `{each.command}`" if each.command else ""))
        for each in problems
    ]
    seconds = "unknown" if facts.restore_s is None else f"{facts.restore_s:.0f} s"
    well = f"{facts.topic} has {facts.span:,} offsets; a full restore takes {seconds}, the target is {target_s:.0f} s."
    return CheckResult(key, COMPACTION, not problems, "\n".join(lines) or well, warns=True, metadata=metadata)


def _numbers(facts: CompactionFacts) -> dict[str, int | float | None]:
    """Numbers that Dagster plots over time; None for a number that could not be read."""
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
