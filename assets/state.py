"""State assets. Materialising one takes a checkpoint from the workers and compares it with the changelog.

Invariants:
    - The worker that owns a partition takes its checkpoint. No other process opens the live store.
    - Store and changelog are compared at the offsets of the checkpoint.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.audits import judge_audit
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.pages.data_versions import LIVE
from holdfast.assets.pages.metadata import docs, read_key, table
from holdfast.assets.pages.pictures import skew, state_picture
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.assets.rollouts import clients_of
from holdfast.assets.times import snapshot_freshness
from holdfast.infra.settings import SnapshotSettings
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.audits.stores import MeasuredPartition, StoreAudit, measure, store_partitions, uncovered
from holdfast.processors.audits.tables import subject_of
from holdfast.processors.engine.serving.status import ProcessorStatus, ScheduleStatus, schedules_together, together
from holdfast.processors.snapshots.names import table_name

MATCHES_CHANGELOG = "matches_changelog"
CHECKPOINTS_STORED = "checkpoints_stored"


def state_asset(
    definition: ProcessorDefinition, store: str, settings: SnapshotSettings | None = None
) -> dg.AssetsDefinition:
    """The Dagster asset of one store; materialising it takes a checkpoint.

    A store without a changelog has no checks.
    """
    key = keys.state_key(definition.name, store)
    changelog, log = definition.topology.changelog_of(store), definition.topology.source_log_of(store)
    topic = changelog.name if changelog is not None else None if log is None else log.topic
    deps = [keys.processor_key(definition.name)]
    if changelog is not None:
        deps.append(keys.changelog_key(definition.name, store))
    if log is not None:
        deps.append(keys.topic_key(log.topic))

    @dg.asset(
        key=key,
        deps=deps,
        description=f"Store {store} of {definition.name}, in RocksDB. Materialising it takes a checkpoint and compares "
        "it with the changelog.",
        group_name=keys.safe(definition.name),
        owners=list(definition.owners),
        kinds={"rocksdb"},
        # State assets have the same freshness policy as snapshots, because the job that publishes snapshots first
        # materialises the state asset.
        freshness_policy=snapshot_freshness(settings or SnapshotSettings()),
        tags=keys.tags(keys.STATE),
        metadata={
            "store": store,
            "changelog": topic or "none",
            **({} if topic is None else {"table": table_name(definition.name, store)}),
            "query": f"holdfast query {definition.name} KEY --store {store}",
            **docs("restoring.md"),
            **read_key(definition.name, store),
        },
        check_specs=[] if topic is None else _check_specs(key),
    )
    def checkpoint_state(
        context: dg.AssetExecutionContext,
        cluster: dg.ResourceParam[Cluster],
        lifecycle: dg.ResourceParam[Lifecycle],
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]
        began = time.monotonic()
        clients = clients_of(definition.name, lifecycle)
        manifests = [client.checkpoint() for client in clients]
        parts = store_partitions(manifests, store)
        context.log.info(f"Checkpointed {len(parts)} partitions of {store} in {time.monotonic() - began:.2f} s")
        topics = cluster.topics()
        rows = [measure(topics, part, store, cluster.client_config, log=log) for part in parts]
        statuses = [status for status in (client.status() for client in clients) if status is not None]
        metadata = _summary(store, rows, manifests, time.monotonic() - began) | _lag(statuses)
        metadata |= _stream_time(statuses) | _timers(statuses, store)
        results = []
        if topic is not None:
            # If a table's source topic replaces the changelog, partitions in no checkpoint are not reported. They may
            # contain records, but a partition that no worker has processed contains no state yet.
            unowned = () if log is not None else tuple(uncovered(topics, topic, parts, cluster.client_config))
            audit = StoreAudit(subject_of(definition.name, store, topic, log), tuple(rows), unowned)
            results = [judge_audit(key, MATCHES_CHANGELOG, audit).result(), judge_store(key, statuses)]
        return dg.MaterializeResult(
            asset_key=key,
            metadata=metadata,
            data_version=LIVE,
            check_results=results,
        )

    return checkpoint_state


def _check_specs(key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    return [
        dg.AssetCheckSpec(
            MATCHES_CHANGELOG,
            asset=key,
            blocking=True,
            description="The checkpoint holds the newest value of each key in the changelog, at the same offsets.",
        ),
        dg.AssetCheckSpec(
            CHECKPOINTS_STORED,
            asset=key,
            description="Workers can store their checkpoints. A failure is a warning: processing continues.",
        ),
    ]


def _summary(
    store: str, rows: list[MeasuredPartition], manifests: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    counts = {row.part.partition: row.stored.count for row in rows}
    partitions = [
        {
            "partition": row.part.partition,
            "live_keys": row.stored.count,
            "changelog_offset": row.part.offset,
            "changelog_records": row.records,
            "task_mib": row.mib,
            "fingerprint": row.stored.hex,
            "changelog_fingerprint": row.folded.hex,
        }
        for row in rows
    ]
    return {
        "live_keys": sum(row.stored.count for row in rows),
        "state_mib": round(float(sum(row.mib for row in rows)), 3),
        "changelog_records": sum(row.records for row in rows),
        "checkpoint_seconds": float(sum(manifest["seconds"] for manifest in manifests)),
        "measure_seconds": round(seconds, 3),
        "checkpointed_at": dg.MetadataValue.timestamp(max(manifest["taken_at"] for manifest in manifests)),
        "checkpoint": dg.MetadataValue.text(", ".join(manifest["checkpoint_id"] for manifest in manifests)),
        "partitions": table(partitions, ["partition"]),
        "key_skew": dg.MetadataValue.float(skew(counts)),
        **({"picture": dg.MetadataValue.md(state_picture(store, counts))} if counts else {}),
    }


def _lag(statuses: Sequence[ProcessorStatus]) -> dict[str, Any]:
    """Metadata with the number of records that are not processed yet; empty if a worker does not know its lag."""
    lags = [status.lag for status in statuses]
    known = [lag for lag in lags if lag is not None]
    return {"lag_records": dg.MetadataValue.int(sum(known))} if lags and len(known) == len(lags) else {}


def _stream_time(statuses: Sequence[ProcessorStatus]) -> dict[str, Any]:
    """Metadata with the smallest stream time (event time reached so far) of all workers; empty without windows."""
    known = [status.stream_time for status in statuses if status.stream_time is not None]
    return {"stream_time": dg.MetadataValue.timestamp(min(known))} if known else {}


def _timers(statuses: Sequence[ProcessorStatus], store: str) -> dict[str, Any]:
    """Returns metadata about a store's timers (count, time of the next timer) or schedules; empty if there are none."""
    timers = [each for status in statuses for task in status.tasks if (each := task.timers.get(store))]
    found, schedules = together(timers), schedules_together(timers)
    if found is None:
        rows = [
            {"schedule": name, "next": _moment(each.next), "last": _moment(each.last), **_counts(each)}
            for name, each in schedules.items()
        ]
        return {"schedules": table(rows, ["schedule"])} if rows else {}
    nexts = {"next_timer_stream_time": found.next_stream, "next_timer_processing_time": found.next_processing}
    times = {name: dg.MetadataValue.timestamp(at) for name, at in nexts.items() if at is not None}
    return {"timers_pending": dg.MetadataValue.int(found.pending), **times}


def _counts(each: ScheduleStatus) -> dict[str, int]:
    return {"fired": each.fired, "missed": each.missed}


def _moment(seconds: float | None) -> str:
    return "none" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"


def judge_store(key: dg.AssetKey, statuses: Sequence[ProcessorStatus]) -> dg.AssetCheckResult:
    """Returns the result of the check that the workers could upload their last checkpoints to the checkpoint store.

    A failure is a warning, because processing continues.
    """
    stores = {status.slot: status.checkpoints for status in statuses if status.checkpoints is not None}
    failing = [
        f"Slot {slot}: {each['error']} ({each['failures']} failures{_next_attempt(each['retry_in_s'])})."
        for slot, each in stores.items()
        if not each["ok"]
    ]
    uploads = sum(each["uploads"] for each in stores.values())
    places = ", ".join(sorted({each["store"] for each in stores.values()})) or "none"
    return CheckResult(
        key,
        CHECKPOINTS_STORED,
        not failing,
        " ".join(failing) or f"Stored checkpoints: {uploads:,}; checkpoint store: {places}.",
        "workers store their checkpoints",
        "Check the checkpoint store's speed, free space and access rights. Until then a lost disk is restored from the "
        "changelog alone.",
        warns=True,
        metadata={"store": places, "stored": uploads, "failures": sum(each["failures"] for each in stores.values())},
    ).result()


def _next_attempt(seconds: float | None) -> str:
    return "" if seconds is None else f", next attempt in {seconds:g} s"
