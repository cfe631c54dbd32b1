"""The assets, observations and checks of sources and sinks. Broker, worker, databases and Dagster are real."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.orchestration.definitions import build_definitions
from holdfast.processors.lifecycle.plans.requests import Stop
from tests.parts.operated import Operated

DEFINITION = """
from holdfast import Application
from holdfast.sinks import Patience, SqlSink
from holdfast.sources import SqlSource

application = Application(
    consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.2, owners=("team:shop",)
)
orders = SqlSource("orders", "sqlite:///{folder}/shop.db", table="orders", cursor="id", key="id", poll=0.1)
frame = application.dataframe(source=orders)
retry = Patience(first_s=0.1, longest_s=0.2, give_up_s=600)
frame.sink(SqlSink("sqlite:///{folder}/copy.db", "copies", key="id", create=True, retry=retry))
"""


def insert(folder: Path, number: int) -> None:
    with closing(sqlite3.connect(folder / "shop.db")) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
        database.execute("INSERT INTO orders VALUES (?)", (number,))


def test_a_source_and_a_sink_are_assets_whose_checks_follow_their_systems(operated: Operated, tmp_path: Path) -> None:
    (module,) = tmp_path.glob("definition_*.py")
    module.write_text(DEFINITION.format(group=operated.group, folder=tmp_path))
    for number in (1, 2, 3):
        insert(tmp_path, number)
    operated.bring_up()
    source = keys.connector_key(operated.group, "source", "orders")
    sink = keys.connector_key(operated.group, "sink", "copies")
    definitions = build_definitions(operated.settings)
    graph = definitions.resolve_asset_graph()
    assert source in graph.get(keys.topic_key("source__orders")).parent_keys
    assert graph.get(sink).parent_keys == {keys.processor_key(operated.group)}

    def figures(name: str) -> Any:
        status = operated.client.status()
        return None if status is None else {**status.sources, **status.sinks}.get(name)

    operated.wait_for(lambda: (seen := figures("copies")) and seen.stored >= 3, "the sink has the rows")
    operated.wait_for(lambda: figures("orders").reported_at is not None, "the source has polled")
    cursors: dict[str, str | None] = {}
    with dg.DagsterInstance.ephemeral() as instance:

        def tick(name: str = "processor_telemetry") -> list[Any]:
            with dg.build_sensor_context(
                instance=instance, resources=definitions.resources, definitions=definitions, cursor=cursors.get(name)
            ) as context:
                data = definitions.resolve_sensor_def(name).evaluate_tick(context)
            cursors[name] = data.cursor
            for event in data.asset_events:
                instance.report_runless_asset_event(event)
            return [each for each in data.asset_events if each.asset_key in (source, sink)]

        present = tick("kept_green")
        assert {each.asset_key for each in present if isinstance(each, dg.AssetMaterialization)} == {source, sink}

        def verdicts(events: list[Any]) -> dict[str, bool]:
            return {each.check_name: each.passed for each in events if isinstance(each, dg.AssetCheckEvaluation)}

        first = tick()
        assert verdicts(first) == {"source_alive": True, "sink_writes": True}
        told = {each.asset_key: each.metadata for each in first if isinstance(each, dg.AssetObservation)}
        assert told[source]["produced_messages"].value == 3
        assert told[source]["position"].value == "id = 3"
        assert told[source]["remaining_rows"].value == 0
        assert told[sink]["stored_results"].value == 3
        assert told[sink]["lag_records"].value == 0
        assert tick() == [], "nothing has changed"

        with closing(sqlite3.connect(tmp_path / "copy.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")  # another program has the sink's database
            insert(tmp_path, 4)
            operated.wait_for(lambda: figures("copies").fails, "the sink has failed")
            (away, _) = tick()
            assert (away.check_name, away.passed, away.severity) == (
                "sink_writes",
                False,
                dg.AssetCheckSeverity.WARN,
            )
            assert "database is locked" in (away.description or "")
            assert f"{tmp_path}/copy.db copies" in (away.description or ""), "the action names the system"
            other.execute("ROLLBACK")
        operated.wait_for(lambda: figures("copies").stored >= 4, "the sink has the row that waited")
        assert verdicts(tick()) == {"sink_writes": True}

        checks = {dg.AssetCheckKey(source, "source_alive"), dg.AssetCheckKey(sink, "sink_writes")}
        job = definitions.resolve_implicit_global_asset_job_def()
        subset = job.get_subset(asset_selection=set(), asset_check_selection=checks)
        ran = subset.execute_in_process(instance=instance)
        assert {each.check_name: each.passed for each in ran.get_asset_check_evaluations()} == {
            "source_alive": True,
            "sink_writes": True,
        }

        operated.do(Stop(operated.group))
        assert tick() == [], "a worker may be away for a moment"
        stopped = tick()
        assert verdicts(stopped) == {"source_alive": False, "sink_writes": False}
        assert {each.severity for each in stopped} == {dg.AssetCheckSeverity.WARN}
        assert tick() == [], "once is enough"
