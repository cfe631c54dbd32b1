"""Restores of a modelled store: the product's plan of a restore, and the rows that the restore would load."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast import Application, State
from holdfast.infra.warehouse.stored_tables import StoredTables
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.plan import Plan, Ready
from holdfast.processors.lifecycle.plans.requests import Restore
from holdfast.processors.lifecycle.plans.stages import LoadChangelog, SetPositions
from holdfast.processors.lifecycle.rebuild.table_rows import checked_rows
from holdfast.processors.lifecycle.verbs.table import decide
from holdfast.processors.lifecycle.world.warehouse import WarehouseTables
from tests.spark.model.checks import compare, expected, require
from tests.spark.model.life import STORE, Life
from tests.spark.model.owner import INPUT, PARTITIONS, Content
from tests.unit.processors.lifecycle.worlds import world_of

#: Where input continues after a restore: at the offsets of the snapshot, at these offsets in copied topics, or where it
#: was.
Inputs = Literal["snapshot", "copied", "stay"]
#: The number of records in the input topics.
_INPUT_END = 1_000_000


def _count(value: Any, state: State) -> Any:
    state.set("n", value)
    return value


def topology_of(processor: str) -> Topology:
    """The topology of a processor with this one store."""
    application = Application(consumer_group=processor)
    application.dataframe(application.topic(INPUT)).apply(_count, stateful=True, store=STORE)
    return application.topology()


def restore(life: Life, at: str, inputs: Inputs) -> tuple[Content, dict[int, int], int] | None:
    """Plan a restore and read its rows, as the stages (steps) of a restore do.

    ``at`` is a tag, or ``latest``. Returns content, input positions and the version. Returns None if the restore is
    refused, and asserts that the refusal is right.
    """
    seen = life.tables.seen(STORE)
    assert seen is not None
    published = seen.published()
    if at == "latest":
        version, manifest = published if published is not None else (0, None)
    else:
        version = seen.tags[at]
        manifest = seen.manifest(version)
    tables = WarehouseTables(lambda: StoredTables(lambda: life.world.catalog))
    plan = _plan(life, at, inputs, tables)
    possible = manifest is not None and (inputs == "stay" or not manifest.from_history)
    require("restore", isinstance(plan.verdict, Ready) == possible, f"{at} with inputs {inputs}: {plan.verdict}")
    if not possible:
        return None
    assert manifest is not None
    load = next(stage for stage in plan.stages if isinstance(stage, LoadChangelog))
    positions = next(stage for stage in plan.stages if isinstance(stage, SetPositions)).positions
    wanted = life.taken[manifest.snapshot_id].content if at == "latest" else expected(life, at, manifest)
    found: Content = {}
    for number, fingerprint in load.fingerprints.items():
        for keys, values in checked_rows(tables, (STORE, load.table, load.version), number, fingerprint):
            found |= {(number, key): value for key, value in zip(keys, values, strict=True)}
    compare("restore", found, wanted, at)
    present = {number: life.owner.past[number][-1].input for number in range(PARTITIONS)}
    if inputs != "stay":
        points = life.taken[manifest.snapshot_id].points
        present = {number: point.inputs[INPUT] for number, point in points.items()}
        require("restore", positions == {INPUT: present}, f"positions of {at}: {positions}, expected {present}")
    return found, present, load.version


def _plan(life: Life, at: str, inputs: Inputs, tables: WarehouseTables) -> Plan:
    topology = topology_of(life.processor)
    committed = {INPUT: {number: life.owner.past[number][-1].input for number in range(PARTITIONS)}}
    facts = msgspec.structs.replace(
        world_of(topology),
        ends={INPUT: dict.fromkeys(range(PARTITIONS), _INPUT_END)},
        committed=committed,
        tables={STORE: tables.store_table(life.processor, STORE)},
    )
    return decide(Restore(life.processor, at=at, inputs=inputs), facts, topology)
