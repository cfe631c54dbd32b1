"""Plan ``compact``: abort hanging transactions that block Kafka's compaction, and let workers rewrite local stores."""

from __future__ import annotations

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, HangingTransaction, read_facts
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Compact
from holdfast.processors.lifecycle.plans.stages import AbortTransaction, CompactStores

#: Bytes that RocksDB rewrites per second, assumed until a rate was measured.
ASSUMED_BYTES_PER_S = 50e6


def read(request: Compact, source: FactSource, topology: Topology) -> Facts:
    """Reads the data that the plan needs, including hanging transactions."""
    return read_facts(topology, source, hanging=True)


def plan(request: Compact, facts: Facts, topology: Topology) -> Plan:
    """The plan that aborts hanging transactions on changelogs, and lets running workers rewrite their local stores."""
    slots = [each.slot for each in facts.instances if each.phase == "running"]
    basis = {
        "running": slots,
        "hanging": [
            f"producer {each.producer_id} on {each.topic}[{each.partition}] from offset {each.start_offset}"
            for each in facts.hanging
        ],
    }
    aborts = tuple(_abort(each) for each in facts.hanging)
    if not slots and not aborts:
        verdict = Refused(
            f"No worker of {topology.processor} runs, and only a running worker can rewrite its stores.",
            f"Deploy it first: `holdfast apply deploy {topology.processor}`.",
            {"processor": topology.processor},
        )
        return Plan(request=request, verdict=verdict, basis=basis)
    size = sum(each.store_bytes or 0 for each in facts.instances)
    seconds, rate = facts.seconds_for("compact_stores", size, ASSUMED_BYTES_PER_S, "bytes")
    named = ", ".join(slots)
    rewrite = CompactStores(f"rewrite the stores of slot {named}; it reads no input meanwhile", tuple(slots))
    does = [f"abort {count_of(len(aborts), 'hanging transaction')} on changelogs"] if aborts else []
    does += [f"rewrite the stores of slot {named}"] if slots else []
    idle = () if slots else (f"no worker of {topology.processor} runs: its local stores are not rewritten",)
    return Plan(
        request=request,
        verdict=Ready(f"{' and '.join(does)}."),
        stages=(*aborts, rewrite) if slots else aborts,
        findings=(*(_found(each) for each in facts.hanging), *idle),
        kept=("All state, changelogs and offsets; the workers stay in the group.",),
        undo="Not needed: state stays the same; records of a hanging transaction were never committed.",
        size_bytes=size,
        seconds=seconds,
        estimate=rate,
        basis=basis,
    )


def _abort(hanging: HangingTransaction) -> AbortTransaction:
    where = f"{hanging.topic}[{hanging.partition}]"
    return AbortTransaction(
        f"abort the transaction of producer {hanging.producer_id} on {where} that began at offset "
        f"{hanging.start_offset}",
        hanging.topic,
        hanging.partition,
        hanging.producer_id,
        hanging.producer_epoch,
        hanging.start_offset,
    )


def _found(hanging: HangingTransaction) -> str:
    return (
        f"{hanging.topic}[{hanging.partition}]: a transaction of producer {hanging.producer_id} hangs since offset "
        f"{hanging.start_offset}, silent for {hanging.silent_s:.0f} s. No coordinator knows it; records after it are "
        "neither compacted nor read"
    )
