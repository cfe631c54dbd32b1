"""State assets: materialising one takes a checkpoint from the owner, measures it, and proves it against the changelog.

Invariants:
    - The owner itself takes the checkpoint; nobody else ever opens the live store.
    - Store and changelog are compared at one offset vector: that of the checkpoint.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from assets import keys
from assets.ports import Cluster, Lifecycle
from infra.kafka.topics import Topics
from processors.lifecycle.audit import REMEDY, FoldedPartition, compare, fingerprint_changelog
from processors.registration import ProcessorDefinition
from processors.serving.client import ProcessorClient
from processors.serving.status import ProcessorStatus
from processors.state.fingerprint import Fingerprint

MATCHES_CHANGELOG = "matches_changelog"
CHECKPOINTS_STORED = "checkpoints_stored"
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StorePartition:
    """One partition of a store in a checkpoint: where its copy lies, and the changelog offset that it is at."""

    partition: int
    path: Path
    changelog: str
    topic_id: str
    offset: int


def store_partitions(manifests: list[dict[str, Any]], store: str) -> list[StorePartition]:
    """The partitions of a store in checkpoint manifests, the first manifest that has one wins; in order."""
    found: dict[int, StorePartition] = {}
    for manifest in manifests:
        for task in manifest["tasks"]:
            at = task["stores"].get(store)
            if at is not None and at.get("changelog"):
                found.setdefault(
                    task["partition"],
                    StorePartition(
                        task["partition"], Path(task["path"]), at["changelog"], at["topic_id"], at["offset"]
                    ),
                )
    return [found[partition] for partition in sorted(found)]


def state_asset(definition: ProcessorDefinition, store: str) -> dg.AssetsDefinition:
    """The asset of one store of a running processor."""
    key = keys.state_key(definition.name, store)
    changelog = definition.topology.changelog_of(store)
    deps = [keys.processor_key(definition.name)]
    if changelog is not None:
        deps.append(keys.changelog_key(definition.name, store))

    @dg.asset(
        key=key,
        deps=deps,
        description=f"Store {store} of {definition.name}, in RocksDB. Materialising it takes a checkpoint and compares "
        "it with the changelog.",
        group_name=keys.safe(definition.name),
        owners=list(definition.owners),
        kinds={"rocksdb"},
        tags=keys.tags(keys.STATE),
        code_version=definition.topology.code_version,
        metadata={"store": store, "changelog": "none" if changelog is None else changelog.name},
        check_specs=[
            dg.AssetCheckSpec(
                MATCHES_CHANGELOG,
                asset=key,
                blocking=True,
                description="The checkpoint holds what the changelog folds to, key by key, at the same offsets.",
            ),
            dg.AssetCheckSpec(
                CHECKPOINTS_STORED,
                asset=key,
                description="Workers can store their checkpoints; where they can't, they go on all the same.",
            ),
        ]
        if changelog is not None
        else [],
    )
    def checkpoint_state(
        context: dg.AssetExecutionContext,
        cluster: dg.ResourceParam[Cluster],
        lifecycle: dg.ResourceParam[Lifecycle],
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]
        began = time.monotonic()
        world = lifecycle.world
        deployed = world.registry.deployment(definition.name)
        slots = ("0",) if deployed is None else deployed.slots
        clients = [ProcessorClient(definition.name, slot, lifecycle.paths) for slot in slots]
        manifests = [client.checkpoint() for client in clients]
        parts = store_partitions(manifests, store)
        context.log.info(f"Checkpointed {len(parts)} partitions of {store} in {time.monotonic() - began:.2f} s")
        topics = cluster.topics()
        rows = [_measure(cluster, part, store) for part in parts]
        statuses = [status for status in (client.status() for client in clients) if status is not None]
        lags = [status.lag for status in statuses]
        metadata = _summary(rows, manifests, time.monotonic() - began)
        if lags and all(lag is not None for lag in lags):
            metadata["lag_records"] = dg.MetadataValue.int(sum(lag for lag in lags if lag is not None))
        results = []
        if changelog is not None:
            results = [
                _judge(key, rows, _uncovered(cluster, topics, changelog.name, parts)),
                judge_store(key, statuses),
            ]
        vector = "/".join(str(part.offset) for part in parts)
        return dg.MaterializeResult(
            asset_key=key,
            metadata=metadata,
            data_version=dg.DataVersion(f"offsets-{vector or 'none'}"),
            check_results=results,
        )

    return checkpoint_state


@dataclass(frozen=True, slots=True)
class _Measured:
    part: StorePartition
    mib: float
    stored: Fingerprint
    folded: FoldedPartition


def _uncovered(cluster: Cluster, topics: Topics, changelog: str, parts: list[StorePartition]) -> list[int]:
    """The changelog partitions that hold state, yet are in no checkpoint; an empty one has nothing to compare."""
    covered = {part.partition for part in parts}
    ends = topics.end_offsets(changelog, committed=True)
    others = {number: end for number, end in sorted(ends.items()) if number not in covered}
    return [
        number
        for number, end in others.items()
        if fingerprint_changelog(cluster.bootstrap, changelog, number, end, cluster.client_config).fingerprint.count
    ]


def _measure(cluster: Cluster, part: StorePartition, store: str) -> _Measured:
    from processors.state.checkpoint_reader import fingerprint_checkpoint  # RocksDB is for runs, not for loading

    size = sum(file.stat().st_size for file in part.path.rglob("*") if file.is_file())
    stored = fingerprint_checkpoint(part.path, store)
    folded = fingerprint_changelog(
        cluster.bootstrap, part.changelog, part.partition, part.offset, cluster.client_config
    )
    return _Measured(part, round(size / MIB, 3), stored, folded)


def _summary(rows: list[_Measured], manifests: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    table = [
        dg.TableRecord(
            {
                "partition": row.part.partition,
                "live_keys": row.stored.count,
                "changelog_offset": row.part.offset,
                "changelog_records": row.folded.records,
                "task_mib": row.mib,
                "fingerprint": row.stored.hex,
                "changelog_fingerprint": row.folded.fingerprint.hex,
            }
        )
        for row in rows
    ]
    return {
        "live_keys": dg.MetadataValue.int(sum(row.stored.count for row in rows)),
        "state_mib": dg.MetadataValue.float(round(float(sum(row.mib for row in rows)), 3)),
        "changelog_records": dg.MetadataValue.int(sum(row.folded.records for row in rows)),
        "checkpoint_seconds": dg.MetadataValue.float(float(sum(manifest["seconds"] for manifest in manifests))),
        "measure_seconds": dg.MetadataValue.float(round(seconds, 3)),
        "checkpointed_at": dg.MetadataValue.timestamp(max(manifest["taken_at"] for manifest in manifests)),
        "checkpoint": dg.MetadataValue.text(", ".join(manifest["checkpoint_id"] for manifest in manifests)),
        "partitions": dg.MetadataValue.table(table, schema=_schema(table)),
    }


def _schema(records: list[dg.TableRecord]) -> dg.TableSchema:
    kinds: Mapping[type, str] = {int: "int", float: "float", str: "string"}
    first = records[0].data if records else {"partition": 0}
    return dg.TableSchema([dg.TableColumn(name, kinds[type(value)]) for name, value in first.items()])


def judge_store(key: dg.AssetKey, statuses: Sequence[ProcessorStatus]) -> dg.AssetCheckResult:
    """Whether the workers' last checkpoints could be stored; a warning, since processing needs none of them."""
    told = {status.slot: status.checkpoints for status in statuses if status.checkpoints is not None}
    failing = {slot: each for slot, each in told.items() if not each["ok"]}
    said = [
        f"slot {slot}: {each['error']} ({each['failures']} failures{_when_again(each['retry_in_s'])})"
        for slot, each in failing.items()
    ]
    remedy = ". Mend the store, its speed, room or rights; until then a lost disk is restored from the changelog alone."
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=CHECKPOINTS_STORED,
        passed=not failing,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(said) + remedy if said else "",
        metadata={
            "store": ", ".join(sorted({each["store"] for each in told.values()})) or "none",
            "stored": sum(each["uploads"] for each in told.values()),
            "failures": sum(each["failures"] for each in told.values()),
        },
    )


def _when_again(seconds: float | None) -> str:
    return "" if seconds is None else f", tried again in {seconds:g} s"


def _judge(key: dg.AssetKey, rows: list[_Measured], uncovered: list[int]) -> dg.AssetCheckResult:
    stored = {row.part.partition: row.stored for row in rows}
    folded = {row.part.partition: row.folded.fingerprint for row in rows}
    differing = compare(stored, folded)
    said = [difference.sentence for difference in differing]
    said += [f"partition {number} was not running, so has no checkpoint" for number in uncovered]
    remedy = f". {REMEDY}" if differing else ". Wait until it runs, or recover the processor; then materialise again."
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=MATCHES_CHANGELOG,
        passed=not said,
        description="; ".join(said) + remedy if said else "",
        metadata={
            "partitions_compared": len(rows),
            "partitions_differing": len(differing),
            "live_keys": sum(row.stored.count for row in rows),
            "store_fingerprint": sum(stored.values(), Fingerprint()).hex,
            "changelog_fingerprint": sum(folded.values(), Fingerprint()).hex,
        },
    )
