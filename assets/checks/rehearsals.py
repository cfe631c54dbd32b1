"""The check `restore_rehearsed` of each store, and the events that a rehearsal (test restore) reports for state assets.

Invariants:
    - RocksDB is imported only by a run that rehearses a restore, not when definitions are loaded.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult, check_of_each
from holdfast.assets.launched_by import actor_of
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.infra.errors import HoldfastError
from holdfast.processors.application.registration import ProcessorDefinition

if TYPE_CHECKING:
    from holdfast.processors.lifecycle.health.rehearsal import Rehearsal, Rehearsals

RESTORE_REHEARSED = "restore_rehearsed"


def open_rehearsals(cluster: Cluster, lifecycle: Lifecycle) -> "Rehearsals":
    """Creates the object that runs rehearsals (test restores) in this process."""
    from holdfast.infra.kafka.cluster import KafkaCluster
    from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
    from holdfast.processors.lifecycle.deploy.present import slots_at_work
    from holdfast.processors.lifecycle.health.rehearsal import Rehearsals

    kafka = KafkaCluster(cluster.bootstrap, client_config=cluster.client_config)
    world = lifecycle.world
    return Rehearsals(world, kafka, RocksDatabases(), lambda name: slots_at_work(name, world))


def rehearsal_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """The check that restores one partition as a test; the result counts for every store of the processor."""

    def results(
        context: dg.AssetCheckExecutionContext, wanted: Sequence[dg.AssetKey], cluster: Cluster, lifecycle: Lifecycle
    ) -> Iterator[CheckResult]:
        from holdfast.processors.lifecycle.health.rehearsal import choose

        if _materialises(context):
            for key in wanted:
                yield last_result(key, definition.name, lifecycle)
            return
        opened = open_rehearsals(cluster, lifecycle)
        chosen = choose(opened.candidates(definition.name), context.run.run_id)
        if chosen is None:
            sentence = f"No worker of {definition.name} runs, so a restored partition can't be compared."
            action = f"Start the processor: `holdfast apply deploy {definition.name}`."
            for key in wanted:
                yield CheckResult(key, RESTORE_REHEARSED, False, sentence, action=action)
            return
        done = opened.rehearse(chosen, actor_of(context.run))
        yield from (found for found in results_of(done, opened, lifecycle) if found.key in wanted)

    return check_of_each(
        f"{keys.safe(definition.name)}_rehearsals",
        RESTORE_REHEARSED,
        "A restore of one partition into a scratch folder gave the same state as its worker has. A restore of all "
        "partitions takes no longer than the target (`HOLDFAST_RESTORE_TARGET_S`, seconds).",
        {key: key for key in (keys.state_key(definition.name, spec.store) for spec in definition.topology.changelogs)},
        results,
    )


def _materialises(context: dg.AssetCheckExecutionContext) -> bool:
    """Whether the run also materialises assets. If so, the check starts no rehearsal (test restore).

    A run that materialises assets also runs all checks of these assets, although nobody has requested a rehearsal.
    """
    planned = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    return bool(context.instance.get_records_for_run(context.run.run_id, of_type=planned, limit=1).records)


def last_result(key: dg.AssetKey, processor: str, lifecycle: Lifecycle) -> CheckResult:
    """The check result from the newest recorded rehearsal (test restore) of the processor. No rehearsal is started.

    The check passes if there was no rehearsal yet.
    """
    from holdfast.processors.lifecycle.health.rehearsal import rehearsed

    last = next(iter(rehearsed(lifecycle.world.registry.actions(1000), processor)), None)
    if last is None:
        sentence = (
            f"No restore of {processor} was rehearsed yet. The schedule `rehearsal_daily` rehearses one, and so does "
            f"`holdfast rehearse {processor}`."
        )
        return CheckResult(key, RESTORE_REHEARSED, True, sentence)
    equal = bool(last.get("equal"))
    verdict = "the same state as its worker has" if equal else "other state than its worker has"
    return CheckResult(
        key,
        RESTORE_REHEARSED,
        equal,
        f"The last rehearsal restored partition {last.get('partition')} in {last['seconds']:.2f} s: "
        f"{last['records']:,} records, {verdict}.",
        "the same state",
        f"Find the keys that differ: `holdfast audit {processor}`.",
    )


def results_of(done: "Rehearsal", opened: "Rehearsals", lifecycle: Lifecycle) -> Iterator[CheckResult]:
    """The check results for all stores after a rehearsal (test restore).

    A result is an error if the restored state differs from the worker's state, and a warning if the restore took too
    long.
    """
    from holdfast.processors.lifecycle.health.rehearsal import judge

    passed, text = judge(done, lifecycle.restore_target_s, opened.before(done.processor))
    for each in done.stores:
        metadata = {
            "recovery_seconds": round(done.seconds, 3),
            "recovery_seconds_all": round(done.all_s, 3),
            "recovery_records": done.records,
            "recovery_records_per_s": round(done.records_per_s, 1),
            "rehearsed_partition": done.partition,
            "changelog_offset": each.offset,
            "restored_fingerprint": each.restored.hex,
            "owner_fingerprint": each.owned.hex,
        }
        key = keys.state_key(done.processor, each.store)
        yield CheckResult(key, RESTORE_REHEARSED, passed, text, warns=done.equal, metadata=metadata)


def publish(instance: dg.DagsterInstance, done: "Rehearsal", opened: "Rehearsals", lifecycle: Lifecycle) -> None:
    """Report the result of a rehearsal (test restore) for each state asset, as an observation and as a check result."""
    for found in results_of(done, opened, lifecycle):
        observed = dg.AssetObservation(found.key, description=found.description, metadata=found.metadata)
        instance.report_runless_asset_event(observed)
        instance.report_runless_asset_event(found.evaluation())


def measured_rate(processor: str, lifecycle: Lifecycle) -> float | None:
    """Records per second in the processor's newest rehearsal (test restore) with a measured rate; None without one."""
    from holdfast.processors.lifecycle.health.rehearsal import rehearsed_rate

    try:
        return rehearsed_rate(lifecycle.world.registry.actions(1000), processor)
    except HoldfastError:
        return None
