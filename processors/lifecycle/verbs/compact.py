"""Plan ``compact``: what keeps Kafka from compacting is ended, and the owners rewrite their local stores."""

from __future__ import annotations

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts import Facts, HangingTransaction
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Compact
from holdfast.processors.lifecycle.plans.stages import AbortTransaction, CompactStores

#: Bytes a second that RocksDB rewrites where nothing was measured yet.
ASSUMED_BYTES_PER_S = 50e6


def plan(request: Compact, facts: Facts, topology: Topology) -> Plan:
    """Decide: what hangs on a changelog is ended, so that Kafka can compact it; the owner rewrites its local stores."""
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
            f"No worker of {topology.processor} runs, and only the owner rewrites its stores.",
            f"Deploy it first: holdfast apply deploy {topology.processor}.",
            {"processor": topology.processor},
        )
        return Plan(request=request, verdict=verdict, basis=basis)
    size = sum(each.store_bytes or 0 for each in facts.instances)
    seconds, measured = facts.seconds_for("compact_stores", size, ASSUMED_BYTES_PER_S)
    named = ", ".join(slots)
    rewrite = CompactStores(f"have slot {named} rewrite the stores; no input is read meanwhile")
    does = [f"end {len(aborts)} transaction(s) that hang on changelogs"] if aborts else []
    does += [f"rewrite the stores of slot {named}"] if slots else []
    idle = () if slots else (f"no worker of {topology.processor} runs: its local stores stay as they are",)
    return Plan(
        request=request,
        verdict=Ready(f"{' and '.join(does)}."),
        stages=(*aborts, rewrite) if slots else aborts,
        findings=(*(_found(each) for each in facts.hanging), *idle),
        kept=("All state, changelogs and offsets; the workers stay in the group.",),
        undo="Nothing to undo: content stays the same; what a hanging transaction wrote was never committed.",
        size_bytes=size,
        seconds=seconds,
        estimate="at the measured rate" if measured else "no rate was measured yet: 50 MB a second assumed",
        basis=basis,
    )


def _abort(hanging: HangingTransaction) -> AbortTransaction:
    where = f"{hanging.topic}[{hanging.partition}]"
    return AbortTransaction(
        f"end the transaction of producer {hanging.producer_id} on {where} from offset {hanging.start_offset} on",
        hanging.topic,
        hanging.partition,
        hanging.producer_id,
        hanging.producer_epoch,
        hanging.start_offset,
    )


def _found(hanging: HangingTransaction) -> str:
    return (
        f"{hanging.topic}[{hanging.partition}]: a transaction of producer {hanging.producer_id} hangs since offset "
        f"{hanging.start_offset}, silent for {hanging.silent_s:.0f} s; no coordinator knows it, and nothing behind it "
        "is compacted or read"
    )
