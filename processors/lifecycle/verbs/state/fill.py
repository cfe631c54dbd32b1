"""Plan ``backfill --from table``: fills a store with the rows of a table of the catalog, one row per message key.

The rows are first written to a topic in the format of the store's changelog. Then the paused workers change the store
until it equals that topic, in ordinary transactions. Input offsets stay unchanged, and the processor is paused only
while the workers change the store.
"""

from __future__ import annotations

import difflib

from msgspec.structs import replace

from holdfast.infra.kafka.topics.partitioners import MURMUR2, NEITHER, UNKNOWN
from holdfast.processors.engine.changelog.names import filling_topic
from holdfast.processors.engine.topology import KEY_VALUE, Topology
from holdfast.processors.lifecycle.plans import stages
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, read_facts
from holdfast.processors.lifecycle.plans.facts.warehouse import ROW
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Everything
from holdfast.processors.lifecycle.verbs.refusals import (
    UNDO_EXCHANGE,
    not_exchangeable,
    of_own_store,
    parts_of_groups,
    unknown_stores,
)

#: Rows written per second, assumed until a rate was measured.
ASSUMED_ROWS_PER_S = 30_000.0
#: Column types whose values can be message keys.
KEY_TYPES = ("string", "int", "long", "binary")


def read(request: Backfill, source: FactSource, topology: Topology) -> Facts:
    """Reads the facts for the plan, including the source table and the partitioner of each input topic."""
    facts, inputs = read_facts(topology, source), topology.inputs_of(request.store)
    spread = {topic: source.spread(topic) for topic in inputs if topic in facts.topics}
    return replace(facts, other=source.other_table(request.table), spread=spread)


def plan(request: Backfill, facts: Facts, topology: Topology) -> Plan:
    """The plan that fills a store from a table; refused if rows cannot be assigned to the store's partitions."""
    inputs = topology.inputs_of(request.store)
    log = topology.changelog_of(request.store)
    basis = {
        "topic_id": facts.topic_ids([*inputs, *([] if log is None else [log.name])]),
        "deployed": facts.deployed,
        "defined": topology.code_version,
        "slot": {each.slot: {"runs": each.alive, "paused": each.paused} for each in facts.instances},
        "table": None if facts.other is None else facts.other.version,
        "keys_spread_by": dict(facts.spread),
    }
    refused = (
        unknown_stores(topology, [request.store])
        or _unfit(request, facts, topology)
        or _unreadable(request, facts)
        or _unknown_partitioner(request, facts)
    )
    if refused is not None:
        return Plan(request=request, verdict=refused, basis=basis)
    table = facts.other
    assert table is not None
    assert table.version is not None
    columns = request.columns or tuple(table.columns)
    partitioner = next((each for each in facts.spread.values() if each != UNKNOWN), MURMUR2)
    load = stages.LoadTable(
        f"write version {table.version} of {table.table} to a temporary topic, keyed by {request.key} and partitioned "
        f"like {', '.join(inputs)} ({partitioner}), while {topology.processor} runs",
        request.store,
        table.table,
        table.version,
        request.key,
        columns,
        partitioner,
        int(table.written_at * 1000),
    )
    seconds, rate = facts.seconds_for("load_table", table.rows or 0, ASSUMED_ROWS_PER_S, "rows")
    return Plan(
        request=request,
        verdict=Ready(f"fill {request.store} from {table.table}, one entry per {request.key}."),
        stages=_stages(request, topology, load),
        findings=_findings(request, facts, columns, partitioner),
        kept=("Input offsets, outputs and all other stores: no input is read again.",),
        deleted=(f"entries of store `{request.store}` that differ from the table",),
        undo=UNDO_EXCHANGE,
        keys=table.rows,
        size_bytes=table.size_bytes,
        seconds=None if table.rows is None else 2 * seconds + 5.0,
        estimate=f"rows and bytes of the table; {rate}",
        basis=basis,
        after_kill="go on",
    )


def _stages(request: Backfill, topology: Topology, load: stages.LoadTable) -> tuple[stages.Stage, ...]:
    name, store = topology.processor, request.store
    return (
        stages.RemoveLoaded(f"remove the temporary topic of an earlier attempt for {store}, if there is one", store),
        load,
        stages.PauseProcessor(f"pause {name}: it commits, and its output stops"),
        stages.AdoptTable(
            f"its owners write the present keys of {store} to a file, then make it equal to the table, in committed "
            "transactions",
            store,
            export=Everything(),
        ),
        stages.ResumeProcessor(f"resume {name} from the offsets at which it was paused"),
        stages.RemoveLoaded(f"remove the temporary topic of {store}", store),
    )


def _findings(request: Backfill, facts: Facts, columns: tuple[str, ...], partitioner: str) -> tuple[str, ...]:
    assert facts.other is not None
    rows = "an unknown number of" if facts.other.rows is None else f"{facts.other.rows:,}"
    found = [
        f"{facts.other.table} has {rows} rows",
        f'functions read a row with `state.get("{ROW}")`: a dict with {", ".join(columns)}',
    ]
    for topic, spread in facts.spread.items():
        if spread == UNKNOWN:
            found.append(f"the partitioner of {topic} is unknown, because it has no records: {partitioner} is assumed")
        else:
            found.append(f"{topic} is partitioned by {spread}, as its newest records show")
    return tuple(found)


def _unfit(request: Backfill, facts: Facts, topology: Topology) -> Refused | None:
    name = request.store
    if (refused := of_own_store(topology, name) or parts_of_groups(topology, [name])) is not None:
        return refused
    if next(each for each in topology.stores if each.name == name).kind != KEY_VALUE:
        return Refused(
            f"Store `{name}` belongs to a built-in aggregation, which cannot read rows of a table.",
            "Fill a store that functions read with `state.get()`.",
            {"store": name},
        )
    then = " A new store begins empty; then repeat this backfill."
    return not_exchangeable(facts, topology, name, lambda: filling_topic(topology.processor, name), then)


def _unreadable(request: Backfill, facts: Facts) -> Refused | None:
    table = facts.other
    assert table is not None
    if table.problem or table.version is None:
        return Refused(
            table.problem or f"Table {table.table} has no rows: it was never written.",
            table.action or "Write the table first.",
            {"table": table.table},
        )
    for column in (request.key, *request.columns):
        if column not in table.columns:
            near = difflib.get_close_matches(column, list(table.columns), 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            return Refused(
                f"{table.table} has no column {column!r}; it has {', '.join(table.columns)}.",
                f"Name one of its columns after `--key` or `--column`.{hint}",
                {"table": table.table, "column": column},
            )
    if table.columns[request.key] not in KEY_TYPES:
        return Refused(
            f"Column {request.key} of {table.table} has type {table.columns[request.key]}; message keys are text, "
            "whole numbers or bytes.",
            "Name another column after `--key`, or write the table with the key as text.",
            {"table": table.table, "column": request.key},
        )
    return None


def _unknown_partitioner(request: Backfill, facts: Facts) -> Refused | None:
    known = {topic: each for topic, each in facts.spread.items() if each != UNKNOWN}
    odd = next((topic for topic, each in known.items() if each == NEITHER), None)
    if odd is not None:
        return Refused(
            f"The keys of {odd} lie in other partitions than murmur2 or crc32 would choose, so the partition of a "
            "table's row is unknown.",
            "Use one of these partitioners in the writers of the topic, or fill the store by a function.",
            {"topic": odd, "store": request.store},
        )
    if len(set(known.values())) > 1:
        ways = ", ".join(f"{topic} by {each}" for topic, each in known.items())
        return Refused(
            f"The inputs of store `{request.store}` are partitioned differently: {ways}.",
            "Use one partitioner in the writers of these topics.",
            {"store": request.store},
        )
    return None
