"""Verbs (operator commands) of a processor with groups of a table's rows.

A row is taken out of the group to which it was added, so a verb changes all of these stores or none.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast import Application, Count, Sum
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts.files import FileFacts, FileStore
from holdfast.processors.lifecycle.plans.facts.shape import as_document, from_document, shape_of
from holdfast.processors.lifecycle.plans.facts.shape import topology_of as topology_from
from holdfast.processors.lifecycle.plans.facts.warehouse import StoreTable
from holdfast.processors.lifecycle.plans.plan import Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Clear, Everything, Keys, Prefix, Restore
from holdfast.processors.lifecycle.plans.stages import ClearGroups, ClearKeys, RunProcessor, StopProcessor
from holdfast.processors.lifecycle.verbs.table import decide
from holdfast.processors.snapshots.manifest import HISTORY
from holdfast.processors.snapshots.names import table_name
from tests.unit.processors.lifecycle.verbs.state.test_table_restore_plans import manifest_of, table_of
from tests.unit.processors.lifecycle.worlds import PARTITIONS, count, stopped, world_of

BETWEEN = "shop-groups-repartition"
REBUILD = "`holdfast apply stop shop`, then `holdfast apply clear shop --all --rewind earliest`"
TOGETHER = {"large", "groups", "groups-rows"}


def topology_of() -> Topology:
    """Table ``rows``, filtered into ``large``, then grouped, and a stream with an independent store ``seen``."""
    app = Application(consumer_group="shop")
    table = app.table(app.topic("orders"), "rows")
    table.filter(bool, "large").group_by("status").aggregate(n=Count(), total=Sum("v"), name="groups")
    app.dataframe(app.topic("clicks")).apply(count, stateful=True, store="seen")
    return app.topology()


TOPOLOGY = topology_of()


def test_the_stores_that_groups_depend_on_are_marked_and_a_table_or_a_plain_filter_is_not() -> None:
    assert {store.name for store in TOPOLOGY.stores if store.retracts} == TOGETHER
    app = Application(consumer_group="shop")
    app.table(app.topic("orders"), "rows").filter(bool, "large")
    app.dataframe(app.topic("clicks")).group_by("status").aggregate(n=Count())
    assert not any(store.retracts for store in app.topology().stores)


@pytest.mark.parametrize(
    "request_",
    [
        Clear("shop", ("groups",), Keys(("open",))),
        Clear("shop", ("groups-rows",), Keys(("1",))),
        Clear("shop", ("large",), Prefix("1")),
        Clear("shop", (), Keys(("1",))),
        Clear("shop", ("groups",), Everything()),
        Clear("shop", ("groups", "groups-rows"), Everything()),
        Clear("shop", partitions=(1,)),
        Backfill("shop", "groups", "table", table="sales.groups", key="status"),
    ],
)
def test_a_part_of_these_stores_is_not_changed_and_the_ways_to_do_it_are_named(request_: Any) -> None:
    for facts in (world_of(TOPOLOGY), stopped(TOPOLOGY)):
        verdict = decide(request_, facts, TOPOLOGY).verdict
        assert isinstance(verdict, Refused)
        assert "take rows out of groups that do not count these rows" in verdict.sentence
        assert REBUILD in verdict.action
        assert "write a record with its key and without a value to orders" in verdict.action
        if isinstance(request_, Clear):
            assert "`--store rows --store seen`" in verdict.action


def joined_by_streams() -> Topology:
    """Streams that join a table, a filtered table and the groups. Records of these streams are no rows of a table."""
    app = Application(consumer_group="shop")
    table = app.table(app.topic("orders"), "rows")
    large = table.filter(bool, "large")
    groups = large.group_by("status").aggregate(n=Count(), name="groups")
    groups.group_by("n").aggregate(n=Count(), name="again")
    app.dataframe(app.topic("clicks")).join_table(table).to_topic(app.topic("out"))
    app.dataframe(app.topic("visits")).join_table(large).to_topic(app.topic("out"))
    app.dataframe(app.topic("calls")).group_by("status").join_table(groups).to_topic(app.topic("out"))
    return app.topology()


def joined_by_a_foreign_key() -> Topology:
    """Groups of a join, which reads its rows from repartition topics only."""
    app = Application(consumer_group="shop")
    orders, people = app.table(app.topic("orders"), "rows"), app.table(app.topic("people"), "people")
    orders.join(people, on="who").group_by("status").aggregate(n=Count(), name="groups")
    return app.topology()


@pytest.mark.parametrize(
    ("topology", "topics"),
    [(TOPOLOGY, "orders"), (joined_by_streams(), "orders"), (joined_by_a_foreign_key(), "orders or people")],
    ids=["alone", "joined by streams", "joined by a foreign key"],
)
def test_deletions_are_sent_to_the_topics_of_the_rows(topology: Topology, topics: str) -> None:
    for store in (store.name for store in topology.stores if store.retracts):
        verdict = decide(Clear("shop", (store,), Keys(("1",))), world_of(topology), topology).verdict
        assert isinstance(verdict, Refused)
        assert f"write a record with its key and without a value to {topics}. To count all rows" in verdict.action


def test_a_processor_whose_definition_can_not_be_imported_is_refused_by_its_recorded_shape() -> None:
    shape = shape_of(TOPOLOGY, {spec.name: PARTITIONS for spec in TOPOLOGY.inputs})
    recorded = topology_from("shop", from_document(json.loads(json.dumps(as_document(shape)))))
    verdict = decide(Clear("shop", ("groups",), Keys(("open",))), world_of(recorded), recorded).verdict
    assert isinstance(verdict, Refused)
    assert REBUILD in verdict.action


@pytest.mark.parametrize("store", ["rows", "seen"])
def test_keys_of_the_table_and_of_other_stores_are_cleared(store: str) -> None:
    plan = decide(Clear("shop", (store,), Keys(("1",))), world_of(TOPOLOGY), TOPOLOGY)
    assert isinstance(plan.verdict, Ready)
    assert [type(stage) for stage in plan.stages] == [ClearKeys]
    assert "Put the deleted entries back" in plan.undo
    assert all(stage.can_be_undone for stage in plan.stages if isinstance(stage, ClearKeys))


def test_one_group_is_not_rebuilt_from_its_topic() -> None:
    for store in TOGETHER:
        verdict = decide(Backfill("shop", store, "topic"), world_of(TOPOLOGY), TOPOLOGY).verdict
        assert isinstance(verdict, Refused)
        assert REBUILD in verdict.action


def test_a_clear_of_all_of_them_leaves_out_what_would_take_rows_out_of_cleared_groups() -> None:
    """A clear of all these stores also skips the records that wait in the repartition topic between the tasks.

    Such a record may subtract a row from its group, but a cleared group no longer has the row.
    """
    plan = decide(Clear("shop", tuple(sorted(TOGETHER))), stopped(TOPOLOGY), TOPOLOGY)
    assert isinstance(plan.verdict, Ready)
    assert [type(stage) for stage in plan.stages] == [RunProcessor, ClearGroups, ClearGroups, StopProcessor]
    cleared = {stage.stores: stage for stage in plan.stages if isinstance(stage, ClearKeys)}
    assert cleared["groups-rows", "large"].positions == {}
    assert cleared["groups",].positions == {BETWEEN: {0: 100, 1: 100}}
    assert "sets the input offsets of 2 partitions to the end" in cleared["groups",].says
    assert f"what is in {BETWEEN} is left out: it is about the cleared rows" in plan.findings
    assert not any("read again" in found for found in plan.findings)
    assert not any(stage.can_be_undone for stage in cleared.values())
    assert plan.undo.startswith("Read all input again: `holdfast apply clear shop --all --rewind earliest`.")
    later = decide(
        Clear("shop"), stopped(TOPOLOGY, ends={**stopped(TOPOLOGY).ends, BETWEEN: {0: 100, 1: 101}}), TOPOLOGY
    )
    assert later.hash != decide(Clear("shop"), stopped(TOPOLOGY), TOPOLOGY).hash


def test_an_exported_group_is_not_put_back_and_the_other_stores_of_the_file_are_named() -> None:
    stores = {name: FileStore(3, 2, 100, (0,), ("1",)) for name in ("groups", "rows")}
    file = FileFacts("/exports/7.jsonl", "sha", stores)
    facts = msgspec.structs.replace(world_of(TOPOLOGY), file=file)
    verdict = decide(Restore("shop", file="/exports/7.jsonl"), facts, TOPOLOGY).verdict
    assert isinstance(verdict, Refused)
    assert verdict.action.endswith(f"{REBUILD}. To put the other stores back: `--store rows`.")
    only = Restore("shop", stores=("rows",), file="/exports/7.jsonl")
    assert isinstance(decide(only, facts, TOPOLOGY).verdict, Ready)


def snapshots(**at: int) -> dict[str, StoreTable]:
    """An Iceberg snapshot of each store, with the state at this offset of the store's inputs."""
    made = {}
    for store in TOPOLOGY.stores:
        part = manifest_of(store.name, "s").partitions[0]
        inputs = dict.fromkeys(store.inputs, at[store.name])
        sources = {name: f"id-of-{name}" for name in store.inputs}
        parts = tuple(replace(part, partition=n, inputs=inputs, sources=sources) for n in range(PARTITIONS))
        of = {"processor": "shop", "table": table_name("shop", store.name)}
        made[store.name] = table_of(store.name, manifest_of(store.name, store.name, partitions=parts, **of))
    return made


OF_ONE_TIME = {"rows": 100, "large": 100, "groups-rows": 100, "groups": 100, "seen": 100}


@pytest.mark.parametrize(
    ("stores", "inputs", "at", "allowed"),
    [
        ((), "stay", {}, True),
        ((), "stay", {"groups": 99}, False),
        (("groups-rows", "large", "rows"), "stay", {"groups-rows": 99, "large": 99, "rows": 99}, False),
        (("rows",), "stay", {"rows": 99}, True),
        (("groups",), "snapshot", {"groups": 99}, True),
        ((), "snapshot", {}, False),
        ((), "earliest", {}, False),
        (("groups",), "earliest", {}, False),
    ],
)
def test_a_snapshot_is_restored_only_if_these_stores_fit_each_other_then(
    stores: tuple[str, ...], inputs: Any, at: dict[str, int], allowed: bool
) -> None:
    facts = stopped(TOPOLOGY, tables=snapshots(**{**OF_ONE_TIME, **at}))
    verdict = decide(Restore("shop", stores=stores, at="latest", inputs=inputs), facts, TOPOLOGY).verdict
    if allowed:
        assert isinstance(verdict, Ready)
    else:
        assert isinstance(verdict, Refused)
        assert REBUILD in verdict.action


@pytest.mark.parametrize("without", [(0, 1), (1,)], ids=["a past version", "a partition"])
def test_a_snapshot_without_an_input_offset_does_not_pass_for_one_at_the_committed_offsets(
    without: tuple[int, ...],
) -> None:
    tables = snapshots(**OF_ONE_TIME)
    version = tables["groups"].versions[0]
    assert version.manifest is not None
    parts = tuple(
        replace(part, inputs={}, sources={}) if part.partition in without else part
        for part in version.manifest.partitions
    )
    source = HISTORY if len(without) == PARTITIONS else version.manifest.source
    unknown = replace(version.manifest, partitions=parts, source=source)
    facts = stopped(TOPOLOGY, tables={**tables, "groups": table_of("groups", unknown)})
    verdict = decide(Restore("shop", stores=("groups",), at="groups", inputs="stay"), facts, TOPOLOGY).verdict
    assert isinstance(verdict, Refused)
    assert "take rows out of groups that do not count these rows" in verdict.sentence
    assert REBUILD in verdict.action
