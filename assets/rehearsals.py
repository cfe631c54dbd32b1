"""The check of each store that a restore of it was rehearsed, and what a rehearsal says of the state assets.

Invariants:
    - RocksDB is imported by a run that rehearses, never by loading definitions.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.infra.errors import HoldfastError
from holdfast.processors.registration import ProcessorDefinition

if TYPE_CHECKING:
    from holdfast.processors.lifecycle.health.rehearsal import Rehearsal, Rehearsals

RESTORE_REHEARSED = "restore_rehearsed"


def open_rehearsals(cluster: Cluster, lifecycle: Lifecycle) -> "Rehearsals":
    """What rehearses restores in this very process."""
    from holdfast.infra.kafka.cluster import KafkaCluster
    from holdfast.processors.engine.state.rocksdb import RocksDatabases
    from holdfast.processors.lifecycle.health.rehearsal import Rehearsals

    return Rehearsals(
        lifecycle.world, KafkaCluster(cluster.bootstrap, client_config=cluster.client_config), RocksDatabases()
    )


def rehearsal_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """A check that rehearses the restore of one partition, and tells every store of it."""
    stores = {keys.state_key(definition.name, spec.store): spec.store for spec in definition.topology.changelogs}

    @dg.multi_asset_check(
        name=f"{keys.safe(definition.name)}_rehearsals",
        specs=[
            dg.AssetCheckSpec(
                RESTORE_REHEARSED,
                asset=key,
                description="A restore of one partition into a scratch folder gave what its owner has, in time.",
            )
            for key in stores
        ],
        can_subset=True,
    )
    def rehearsals(
        context: dg.AssetCheckExecutionContext,
        cluster: dg.ResourceParam[Cluster],
        lifecycle: dg.ResourceParam[Lifecycle],
    ) -> Iterable[dg.AssetCheckResult]:
        from holdfast.processors.lifecycle.health.rehearsal import choose

        wanted = {key.asset_key for key in context.selected_asset_check_keys}
        if _materialises(context):
            passed, text = last_said(definition.name, lifecycle)
            for key in wanted:
                yield _result(key, passed, text, {})
            return
        opened = open_rehearsals(cluster, lifecycle)
        chosen = choose(opened.candidates(definition.name), context.run.run_id)
        if chosen is None:
            for key in wanted:
                yield _result(key, False, f"No worker of {definition.name} runs: there is nobody to compare with.", {})
            return
        done = opened.rehearse(chosen, f"dagster run {context.run.run_id}")
        for key, passed, text, metadata in said_of(done, opened, lifecycle):
            if key in wanted:
                yield _result(key, passed, text, metadata)

    return rehearsals


def _materialises(context: dg.AssetCheckExecutionContext) -> bool:
    """Whether the run makes assets, too: Dagster then runs all their checks, and nobody asked for a restore."""
    planned = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    return bool(context.instance.get_records_for_run(context.run.run_id, of_type=planned, limit=1).records)


def last_said(processor: str, lifecycle: Lifecycle) -> tuple[bool, str]:
    """What the newest rehearsal came to, without another: whether it was equal, and words."""
    from holdfast.processors.lifecycle.health.rehearsal import rehearsed

    last = next(iter(rehearsed(lifecycle.world.registry.actions(1000), processor)), None)
    if last is None:
        return True, (
            f"No restore of {processor} was rehearsed yet. The schedule rehearsal_daily does so, or: holdfast rehearse "
            f"{processor}."
        )
    equal = bool(last.get("equal"))
    verdict = "all equal to the owner's" if equal else "other state than its owner's: holdfast audit tells the keys"
    return equal, (
        f"The last rehearsal restored partition {last.get('partition')} in {last['seconds']:.2f} s: "
        f"{last['records']:,} records, {verdict}."
    )


def said_of(
    done: "Rehearsal", opened: "Rehearsals", lifecycle: Lifecycle
) -> Iterator[tuple[dg.AssetKey, bool, str, dict[str, dg.MetadataValue]]]:
    """By state asset: whether the rehearsal is in order, the words, and the figures."""
    from holdfast.processors.lifecycle.health.rehearsal import judge

    passed, text = judge(done, lifecycle.restore_target_s, opened.before(done.processor))
    for each in done.stores:
        metadata: dict[str, dg.MetadataValue] = {
            "recovery_seconds": dg.MetadataValue.float(round(done.seconds, 3)),
            "recovery_seconds_all": dg.MetadataValue.float(round(done.all_s, 3)),
            "recovery_records": dg.MetadataValue.int(done.records),
            "recovery_records_per_s": dg.MetadataValue.float(round(done.records_per_s, 1)),
            "rehearsed_partition": dg.MetadataValue.int(done.partition),
            "changelog_offset": dg.MetadataValue.int(each.offset),
            "restored_fingerprint": dg.MetadataValue.text(each.restored.hex),
            "owner_fingerprint": dg.MetadataValue.text(each.owned.hex),
        }
        yield keys.state_key(done.processor, each.store), passed, text, metadata


def publish(instance: dg.DagsterInstance, done: "Rehearsal", opened: "Rehearsals", lifecycle: Lifecycle) -> None:
    """Tell the state assets of a rehearsal, as an observation and as their check."""
    for key, passed, text, metadata in said_of(done, opened, lifecycle):
        instance.report_runless_asset_event(dg.AssetObservation(key, description=text, metadata=metadata))
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=key,
                check_name=RESTORE_REHEARSED,
                passed=passed,
                metadata=metadata,
                severity=dg.AssetCheckSeverity.ERROR if not done.equal else dg.AssetCheckSeverity.WARN,
                description=text,
                blocking=False,
            )
        )


def measured_rate(processor: str, lifecycle: Lifecycle) -> float | None:
    """Records a second of the processor's newest rehearsal; None when there is none that tells."""
    from holdfast.processors.lifecycle.health.rehearsal import rehearsed_rate

    try:
        return rehearsed_rate(lifecycle.world.registry.actions(1000), processor)
    except HoldfastError:
        return None


def _result(key: dg.AssetKey, passed: bool, text: str, metadata: dict[str, Any]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=key, check_name=RESTORE_REHEARSED, passed=passed, description=text, metadata=metadata
    )
