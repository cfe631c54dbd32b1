"""Tables that are restored from their own topic. Tests what declarations, plans and deployments allow and refuse."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from holdfast import Application, Topic
from holdfast.assets import keys
from holdfast.assets.checks.audits import COPIES_EQUAL
from holdfast.assets.checks.queries import QUERIES_ANSWERED
from holdfast.assets.factory import build_assets
from holdfast.assets.snapshots import MATCHES_STATE
from holdfast.assets.state import CHECKPOINTS_STORED, MATCHES_CHANGELOG
from holdfast.infra.kafka.records import TopicFacts
from holdfast.orchestration.resources import build_resources
from holdfast.processors.application.arguments import ApplicationInvalid
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.engine.provisioning import CreateTopic, plan
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.databases.task_meta import StoreOffset, TaskMeta
from holdfast.processors.engine.state.keep_or_restore import doubt_of_tail, may_begin_empty, plan_restore
from holdfast.processors.engine.table_topics import lost_records, table_warnings
from holdfast.processors.engine.topology import SourceLog, Topology
from holdfast.processors.engine.topology_drawing import drawing_of
from holdfast.processors.lifecycle.plans.facts.facts import LocalTask
from holdfast.processors.lifecycle.plans.facts.shape import as_document, from_document, shape_of, topology_of
from holdfast.processors.lifecycle.plans.plan import Ready, Refused
from holdfast.processors.lifecycle.plans.requests import (
    Backfill,
    Clear,
    Deploy,
    Keys,
    Reposition,
    Restore,
)
from holdfast.processors.lifecycle.plans.stages import ClearKeys, DeleteTopic, SetPositions
from holdfast.processors.lifecycle.plans.stages import CreateTopic as CreateStage
from holdfast.processors.lifecycle.verbs.releases.compatibility import compare
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import PARTITIONS, stopped, world_of

LOG = SourceLog("rows", "prices")
COMPACT = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}


def declared(
    topic: dict[str, Any] | None = None,
    table: dict[str, Any] | None = None,
    behind: Callable[[Any], Any] = lambda stream: stream,
    **options: Any,
) -> Topology:
    """Table `rows` of topic `prices`, and a stream of orders joined with it. The stream has a store `totals`."""
    app = Application(consumer_group="orders", **{"auto_offset_reset": "earliest", **options})
    rows = app.table(app.topic("prices", **(topic or {})), "rows", **{"changelog": "source", **(table or {})})
    behind(rows.to_stream())
    placed = app.dataframe(app.topic("placed")).join_table(rows, "left", lambda left, right: right)
    placed.update(lambda value, state: state.set("n", 1), stateful=True, store="totals")
    return app.topology()


def of_tables_only() -> Topology:
    app = Application(consumer_group="orders", auto_offset_reset="earliest")
    rows = app.table(app.topic("prices"), "rows", changelog="source")
    app.dataframe(app.topic("placed")).join_table(rows, "left", lambda left, right: right)
    return app.topology()


def windowed(app: Any = None) -> Topology:
    app = Application(consumer_group="orders", auto_offset_reset="earliest", dead_letter_topic="dead")
    rows = app.table(app.topic("prices"), "rows", changelog="source")
    placed = app.dataframe(app.topic("placed")).join_table(rows, "left", lambda left, right: right)
    placed.tumbling_window(1_000).count().final()
    return app.topology()


# -- declarations ------------------------------------------------------------------------------------------------------


def test_the_topic_is_no_changelog_that_is_written_or_created() -> None:
    topology = declared()
    assert topology.source_logs == (LOG,)
    assert [spec.store for spec in topology.changelogs] == ["totals"]
    assert topology.logged == {"rows", "totals"}
    assert "prices" not in topology.written()
    created = {
        stage.spec.name: stage.spec.config for stage in plan(topology, {}).stages if isinstance(stage, CreateTopic)
    }
    assert created["prices"] == COMPACT
    assert "orders-rows-changelog" not in created


def test_a_model_types_the_columns_of_its_table_in_the_warehouse() -> None:
    (rows,) = [store for store in declared(table={"model": {"row": int}}).stores if store.name == "rows"]
    assert rows.schema is not None


def test_the_drawing_tells_where_the_rows_come_from() -> None:
    drawn = drawing_of(declared(), {"prices": 2, "placed": 2})
    assert "rows (restored from prices)" in drawn
    assert "totals (orders-totals-changelog)" in drawn


def test_the_topic_is_upstream_of_the_state_which_is_compared_with_it() -> None:
    app = Application("unused:1", consumer_group="orders", auto_offset_reset="earliest")
    app.table(app.topic("prices"), "rows", changelog="source")
    definition = ProcessorDefinition("orders", app, app.topology(), "", (), "module:app")
    made = dg.Definitions.merge(build_assets([definition]), dg.Definitions(resources=build_resources()))
    graph = made.resolve_asset_graph()
    state, table = keys.state_key("orders", "rows"), keys.snapshot_key("orders", "rows")
    assert keys.topic_key("prices") in graph.get(state).parent_keys
    checks = {MATCHES_CHANGELOG, CHECKPOINTS_STORED, QUERIES_ANSWERED}
    assert {check.name for check in graph.get_check_keys_for_assets({state})} == checks
    assert keys.changelog_key("orders", "rows") not in graph.get_all_asset_keys()
    assert graph.get(table).parent_keys == {state, keys.topic_key("prices")}
    assert {check.name for check in graph.get_check_keys_for_assets({table})} == {MATCHES_STATE, COPIES_EQUAL}


def test_another_changelog_is_another_version() -> None:
    assert declared().code_version != declared(table={"changelog": "own"}).code_version


@pytest.mark.parametrize(
    ("why", "make"),
    [
        ("history_retention", lambda: declared(table={"history_retention": timedelta(days=1)})),
        ("has a timestamp_extractor", lambda: declared({"timestamp_extractor": lambda value, headers, at, kind: at})),
        ("value_deserializer of topic prices is a function", lambda: declared({"value_deserializer": lambda raw: raw})),
        ("value_deserializer of topic prices is 'bytes'", lambda: declared({"value_deserializer": "bytes"})),
        ("key_deserializer of topic prices is a function", lambda: declared({"key_deserializer": lambda raw: raw})),
        ("auto_offset_reset is 'latest'", lambda: declared(auto_offset_reset="latest")),
        ("use_changelog_topics is off", lambda: declared(use_changelog_topics=False)),
        ("`app.store` or `changelog_config`", lambda: declared(changelog_config={"rows": {"segment.ms": "100000"}})),
        (
            "has a step behind it",
            lambda: declared(behind=lambda stream: stream.to_topic(Topic("out")), dead_letter_topic="dead"),
        ),
        (
            "has a step behind it",
            lambda: declared(behind=lambda stream: stream.apply(str), on_processing_error=lambda *_: True),
        ),
        ("which keeps time, and failed messages are put aside", windowed),
    ],
)
def test_what_the_topic_alone_does_not_tell_is_refused_with_the_reason(why: str, make: Callable[[], Topology]) -> None:
    with pytest.raises(ApplicationInvalid, match="can't have `changelog='source'`, because") as refused:
        make()
    assert why in refused.value.message
    assert refused.value.action


def test_no_changelog_is_promised_where_changelogs_are_off() -> None:
    with pytest.raises(ApplicationInvalid, match="no store of the application is restored from Kafka then") as refused:
        declared(use_changelog_topics=False)
    assert "on the local disk only" in refused.value.action
    assert "changelog of its own" not in refused.value.action


def test_steps_behind_it_are_allowed_where_no_message_is_put_aside() -> None:
    assert declared(behind=lambda stream: stream.to_topic(Topic("out"))).source_logs == (LOG,)
    assert declared(dead_letter_topic="dead").source_logs == (LOG,)


def test_another_word_for_the_changelog_is_refused() -> None:
    with pytest.raises(ApplicationInvalid, match="one of own, source"):
        declared(table={"changelog": "topic"})


# -- topics ------------------------------------------------------------------------------------------------------------


def topic(config: dict[str, str]) -> dict[str, TopicFacts]:
    return {name: TopicFacts(name, "id", 1, 1, config) for name in ("prices", "placed")}


def test_a_topic_that_deletes_rows_is_refused_before_anything_is_created() -> None:
    (refusal,) = plan(declared(), topic({"cleanup.policy": "delete"})).refusals
    assert "Kafka would delete rows of it" in refusal.sentence
    assert "cleanup.policy=compact" in refusal.action
    assert plan(declared(), topic(COMPACT)).refusals == ()


def test_a_topic_that_is_compacted_at_once_is_warned_of() -> None:
    (warning,) = table_warnings(declared(), topic({"cleanup.policy": "compact"}))
    assert "has min.compaction.lag.ms=0" in warning
    assert table_warnings(declared(), topic(COMPACT)) == ()


def test_each_partition_that_lost_its_first_records_is_named() -> None:
    assert lost_records(declared(), {"prices": {0: 0, 1: 0}}) == ()
    (warning,) = lost_records(declared(), {"prices": {2: 7, 0: 0, 1: 5}})
    assert "begins at offset 5 in partition 1, 7 in partition 2, expected 0" in warning
    assert "Declare the table without `changelog='source'` and deploy" in warning


# -- restores ----------------------------------------------------------------------------------------------------------


def facts(end: int = 100, *, start: int = 0, young_from: int = 0) -> dict[str, ChangelogFacts]:
    return {"rows": ChangelogFacts("prices", "id", start, end, 86_400.0, LOG, young_from)}


def held(offset: int, inputs: int | None = 0, topic_id: str = "id") -> TaskMeta:
    at = StoreOffset("prices", topic_id, offset, {} if inputs is None else {"prices": offset})
    return TaskMeta(inputs={"prices": offset}, stores={"rows": at}, complete_at=1_000.0)


def test_a_tail_of_old_records_is_not_replayed_and_an_interrupted_whole_replay_is_resumed() -> None:
    assert plan_restore("t", held(40), facts(young_from=40), 1_000.0).starts == {"rows": 40}
    decided = plan_restore("t", held(40), facts(young_from=41), 1_000.0)
    assert (decided.starts, "were old when they were processed" in (decided.wipe or "")) == ({"rows": 0}, True)
    assert plan_restore("t", held(100), facts(young_from=200), 1_000.0).wipe is None
    assert doubt_of_tail(held(40, inputs=None).stores["rows"], facts(young_from=90)["rows"]) is None


def test_one_record_that_is_missing_is_no_marker() -> None:
    assert plan_restore("t", held(99), facts(), 1_000.0 + 86_400).wipe is not None


def test_state_ahead_of_the_group_is_dropped_and_kept_aside_until_the_rest_is_whole() -> None:
    decided = plan_restore("t", held(100), facts(60), 1_000.0)
    assert decided.starts == {"rows": 0}
    assert decided.aside
    assert "was set back to 60" in (decided.wipe or "")


def test_a_table_beside_old_state_is_restored_with_it() -> None:
    meta = TaskMeta(inputs={"placed": 7}, complete_at=1_000.0)
    assert plan_restore("t", meta, facts(), 1_000.0).wipe is None
    assert plan_restore("t", meta, facts(), 1_000.0 + 86_400).wipe is not None


def test_no_table_begins_empty() -> None:
    assert may_begin_empty({"rows": ""}, facts()) == frozenset()


# -- verbs -------------------------------------------------------------------------------------------------------------

REFUSED = [
    Clear("orders", stores=("rows",), selection=Keys(("tea",))),
    Clear("orders"),
    Backfill("orders", "rows", source="topic"),
    Backfill("orders", "rows", source="local"),
    Restore("orders", at="latest", stores=("rows",)),
]


@pytest.mark.parametrize("request_", REFUSED)
def test_verbs_that_would_write_the_table_say_what_to_write_instead(request_: Any) -> None:
    topology = declared()
    verdict = decide(request_, world_of(topology), topology).verdict
    assert isinstance(verdict, Refused)
    assert "it is restored from topic prices" in verdict.sentence
    assert "Write to prices: a record sets a row, a record without a value deletes it." in verdict.action


def test_clear_names_the_other_stores_and_the_rebuild() -> None:
    topology = declared()
    verdict = decide(Clear("orders"), world_of(topology), topology).verdict
    assert isinstance(verdict, Refused)
    assert "`--store totals`" in verdict.action
    assert "`holdfast apply clear orders --all --rewind earliest`" in verdict.action


def test_everything_can_be_read_again() -> None:
    topology = declared()
    decided = decide(Clear("orders", rewind="earliest"), stopped(topology), topology)
    assert isinstance(decided.verdict, Ready)
    assert not [stage for stage in decided.stages if isinstance(stage, DeleteTopic | CreateStage)]
    assert any(isinstance(stage, ClearKeys) and "rows" in stage.stores for stage in decided.stages)


def test_a_restore_of_local_state_needs_no_changelog_of_the_table() -> None:
    topology = declared()
    assert isinstance(decide(Restore("orders"), world_of(topology), topology).verdict, Ready)


def test_offsets_follow_the_other_stores_and_a_table_alone_has_none() -> None:
    topology = declared()
    inputs = {number: {"placed": 7, "prices": 5} for number in range(PARTITIONS)}
    world = stopped(topology, held={"totals": inputs}, local=())
    decided = decide(Reposition("orders"), world, topology)
    (stage,) = [stage for stage in decided.stages if isinstance(stage, SetPositions)]
    assert stage.stores == ("totals",)
    assert stage.positions == {
        "placed": dict.fromkeys(range(PARTITIONS), 7),
        "prices": dict.fromkeys(range(PARTITIONS), 5),
    }
    topics = {name: dict.fromkeys(range(PARTITIONS), 0) for name in ("placed", "prices")}
    alone = of_tables_only()
    verdict = decide(Reposition("orders"), stopped(alone, committed=topics), alone).verdict
    assert isinstance(verdict, Refused)
    assert "they have the rows of any offset" in verdict.sentence


def test_local_state_of_a_topic_that_is_another_one_fills_no_changelog() -> None:
    topology = declared()
    copy = LocalTask("0", "prices+placed-0", stores={"rows": ("prices", "another", 5)}, inputs={"prices": 5})
    assert isinstance(decide(Restore("orders"), world_of(topology, local=(copy,)), topology).verdict, Ready)


# -- versions ----------------------------------------------------------------------------------------------------------


def verdict_of(before: Topology, after: Topology) -> Any:
    shapes = [shape_of(each, {"prices": 2, "placed": 2}) for each in (before, after)]
    found = compare("orders", *shapes, dropped=(), left={})
    return next(each for each in found if each.store == "rows")


def test_a_shape_keeps_the_topic() -> None:
    shape = from_document(as_document(shape_of(declared(), {"prices": 2, "placed": 2})))
    assert topology_of("orders", shape).source_logs == (LOG,)


def test_a_table_gives_its_changelog_up_under_another_name_only() -> None:
    verdict = verdict_of(declared(table={"changelog": "own"}), declared())
    assert verdict.refused
    assert "`name='rows-2'`" in verdict.action
    back = verdict_of(declared(), declared(table={"changelog": "own"}))
    assert (back.change, back.refused) == ("changelog on", False)
    same = verdict_of(declared(), declared())
    assert (same.change, same.refused) == ("same", False)


def test_a_new_table_and_one_that_is_gone_are_told_by_their_topic() -> None:
    without = Application(consumer_group="orders")
    without.dataframe(without.topic("placed")).update(
        lambda value, state: state.set("n", 1), stateful=True, store="totals"
    )
    new = verdict_of(without.topology(), declared())
    assert (new.change, new.refused, new.sentence) == (
        "new",
        False,
        "Store `rows` is new: it is restored from topic prices.",
    )
    gone = verdict_of(declared(), without.topology())
    assert gone.sentence == "Store `rows` is no longer used; topic prices, which has its rows, stays as it is."


def test_a_deploy_creates_and_empties_nothing_for_the_table() -> None:
    topology = declared()
    decided = decide(Deploy("orders"), world_of(topology), topology)
    assert not [stage for stage in decided.stages if isinstance(stage, DeleteTopic | CreateStage)]


def test_another_store_of_the_processor_is_cleared_as_always() -> None:
    topology = declared()
    request = Clear("orders", stores=("totals",), selection=Keys(("tea",)))
    assert isinstance(decide(request, world_of(topology), topology).verdict, Ready)
