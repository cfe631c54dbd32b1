"""Plan ``backfill`` from a table: a store gets the rows of any table of the catalog, by message key.

The rows are written beside the store first, as its changelog has entries; then the paused owners make the store equal
to them, in ordinary transactions. Input offsets stay, and the processor works but for the exchange.
"""

from __future__ import annotations

import difflib

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.partitioners import MURMUR2, NEITHER, UNKNOWN
from holdfast.processors.engine.changelog.names import filling_topic
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts import Facts, selected
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Everything
from holdfast.processors.lifecycle.plans.stages import (
    AdoptTable,
    ExportKeys,
    LoadTable,
    PauseProcessor,
    RemoveLoaded,
    ResumeProcessor,
    Stage,
)
from holdfast.processors.lifecycle.plans.warehouse_facts import ROW
from holdfast.processors.lifecycle.verbs.refusals import (
    missing_topics,
    not_as_deployed,
    not_working,
    unknown_stores,
    without_changelog,
)

#: Rows a second where nothing was measured yet.
ASSUMED_ROWS_PER_S = 30_000.0
#: Types of columns whose values are message keys.
KEY_TYPES = ("string", "int", "long", "binary")


def plan(request: Backfill, facts: Facts, topology: Topology) -> Plan:
    """Decide whether a table's rows can be a store's content, and how they are spread over its partitions."""
    inputs = next((store.inputs for store in topology.stores if store.name == request.store), ())
    log = topology.changelog_of(request.store)
    basis = {
        "topic_id": {
            name: facts.topics[name].topic_id
            for name in selected(facts.topics, [*inputs, *([] if log is None else [log.name])])
        },
        "deployed": None if facts.deployment is None else facts.deployment.code_version,
        "defined": topology.code_version,
        "slot": {each.slot: {"runs": each.alive, "paused": each.paused} for each in facts.instances},
        "table": None if facts.other is None else facts.other.version,
        "keys_spread_by": dict(facts.spread),
    }
    refused = (
        unknown_stores(topology, [request.store]) or _unfit(request, facts, topology) or _unreadable(request, facts)
    )
    refused = refused or _spread_otherwise(request, facts)
    if refused is not None:
        return Plan(request=request, verdict=refused, basis=basis)
    table = facts.other
    assert table is not None
    assert table.version is not None
    columns = request.columns or tuple(table.columns)
    partitioner = next((each for each in facts.spread.values() if each != UNKNOWN), MURMUR2)
    load = LoadTable(
        f"write version {table.version} of {table.table} to a topic beside {request.store}, keyed by {request.key} and "
        f"spread as {', '.join(inputs)} is ({partitioner}); {topology.processor} works on",
        request.store,
        table.table,
        table.version,
        request.key,
        columns,
        partitioner,
        int(table.written_at * 1000),
    )
    seconds, measured = facts.seconds_for("load_table", table.rows or 0, ASSUMED_ROWS_PER_S)
    return Plan(
        request=request,
        verdict=Ready(f"fill {request.store} from {table.table}, one entry for each {request.key}."),
        stages=_stages(request, topology, load),
        findings=_findings(request, facts, columns, partitioner),
        kept=("Input offsets, outputs and all other stores: nothing is read again.",),
        deleted=(f"the present content of {request.store}, where it differs from the table",),
        undo="Until the exchange: holdfast apply abandon. Afterwards the exported file has every key as it was.",
        keys=table.rows,
        size_bytes=table.size_bytes,
        seconds=None if table.rows is None else 2 * seconds + 5.0,
        estimate="rows and bytes of the table; " + ("at the measured rate" if measured else "no rate was measured"),
        basis=basis,
        after_kill="go on",
    )


def _stages(request: Backfill, topology: Topology, load: LoadTable) -> tuple[Stage, ...]:
    name, store = topology.processor, request.store
    return (
        RemoveLoaded(f"remove what an earlier try may have left beside {store}", store),
        load,
        ExportKeys(f"write the present keys of {store} to a file", (store,), Everything(), ()),
        PauseProcessor(f"pause {name}: it commits, and its output stops"),
        AdoptTable(f"make {store} equal to the table, in committed transactions of its owners", store),
        ResumeProcessor(f"let {name} work again, from the very offsets that it was paused at"),
        RemoveLoaded(f"remove the topic beside {store}", store),
    )


def _findings(request: Backfill, facts: Facts, columns: tuple[str, ...], partitioner: str) -> tuple[str, ...]:
    assert facts.other is not None
    rows = "an unknown number of" if facts.other.rows is None else f"{facts.other.rows:,}"
    found = [
        f"{facts.other.table} has {rows} rows",
        f'functions see a row as state.get("{ROW}"): a dict with {", ".join(columns)}',
    ]
    for topic, spread in facts.spread.items():
        if spread == UNKNOWN:
            found.append(f"{topic} has no record to judge by how its writers spread keys: {partitioner} is taken")
        else:
            found.append(f"{topic} spreads its keys by {spread}, as its newest records show")
    return tuple(found)


def _unfit(request: Backfill, facts: Facts, topology: Topology) -> Refused | None:
    name, store = topology.processor, next(each for each in topology.stores if each.name == request.store)
    if (bare := without_changelog(topology, request.store)) is not None:
        return bare
    if store.columns:
        return Refused(
            f"Store {request.store} is that of a built-in aggregation, which alone makes its entries.",
            "Fill a store that functions use by state.get().",
            {"store": request.store},
        )
    then = " A new store begins empty then, and is filled afterwards."
    refused = (
        missing_topics(facts, topology)
        or not_as_deployed(facts, topology)
        or not_working(facts, topology, "the rows", then)
    )
    if refused is not None:
        return refused
    try:
        filling_topic(name, request.store)
    except HoldfastError as illegal:
        return Refused(illegal.message, illegal.action, {"store": request.store})
    return None


def _unreadable(request: Backfill, facts: Facts) -> Refused | None:
    table = facts.other
    assert table is not None
    if table.problem or table.version is None:
        return Refused(
            table.problem or f"Table {table.table} was never written: it has no rows.",
            table.action or "Write the table first.",
            {"table": table.table},
        )
    for column in (request.key, *request.columns):
        if column not in table.columns:
            near = difflib.get_close_matches(column, list(table.columns), 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            return Refused(
                f"{table.table} has no column {column!r}; it has {', '.join(table.columns)}.",
                f"Name one of its columns.{hint}",
                {"table": table.table, "column": column},
            )
    if table.columns[request.key] not in KEY_TYPES:
        return Refused(
            f"Column {request.key} of {table.table} is {table.columns[request.key]}: message keys are text, whole "
            "numbers or bytes.",
            "Name another column, or write the table with the key as text.",
            {"table": table.table, "column": request.key},
        )
    return None


def _spread_otherwise(request: Backfill, facts: Facts) -> Refused | None:
    known = {topic: each for topic, each in facts.spread.items() if each != UNKNOWN}
    odd = next((topic for topic, each in known.items() if each == NEITHER), None)
    if odd is not None:
        return Refused(
            f"The keys of {odd} lie in other partitions than Kafka's own hashes (murmur2, crc32) put them in: where a "
            "key's row has to be can't be known.",
            "Have its writers use one of these partitioners, or write the store by a function.",
            {"topic": odd, "store": request.store},
        )
    if len(set(known.values())) > 1:
        said = ", ".join(f"{topic} by {each}" for topic, each in known.items())
        return Refused(
            f"The inputs of {request.store} spread their keys in different ways: {said}.",
            "Have their writers use one partitioner.",
            {"store": request.store},
        )
    return None
