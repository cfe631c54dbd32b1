"""The assets, observations and checks of sources and sinks. Broker, worker, databases and Dagster are real."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.orchestration.definitions import build_definitions
from holdfast.processors.lifecycle.plans.requests import Restart, Stop
from tests.parts.operated import Operated

DEFINITION = """
from holdfast import Application
from holdfast.sinks import Patience, SqlSink
from holdfast.sources import SqlSource

application = Application(
    consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.2, owners=("team:shop",),
    consumer_extra_config={{"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}},
)
orders = SqlSource("orders", "sqlite:///{folder}/shop.db", table="orders", cursor="id", key="id", poll=0.1)
frame = application.dataframe(source=orders)
retry = Patience(first_s=0.1, longest_s=0.2, give_up_s=600)
frame.sink(SqlSink("sqlite:///{folder}/copy.db", "copies", key="id", create=True, retry=retry))
"""


class Bench:
    """A worker that copies the table ``orders`` of one database to another one, and the sensors that watch it."""

    def __init__(self, operated: Operated, folder: Path, instance: dg.DagsterInstance) -> None:
        (module,) = folder.glob("definition_*.py")
        module.write_text(DEFINITION.format(group=operated.group, folder=folder))
        self.operated, self.folder, self.instance = operated, folder, instance
        self.source = keys.connector_key(operated.group, "source", "orders")
        self.sink = keys.connector_key(operated.group, "sink", "copies")
        self.cursors: dict[str, str | None] = {}
        for number in (1, 2, 3):
            self.insert(number)
        operated.bring_up()
        self.definitions = build_definitions(operated.settings)
        operated.wait_for(lambda: (seen := self.figures("copies")) and seen.stored >= 3, "the sink has the rows")
        operated.wait_for(lambda: self.figures("orders").reported_at is not None, "the source has polled")

    def insert(self, number: int) -> None:
        with closing(sqlite3.connect(self.folder / "shop.db")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
            database.execute("INSERT INTO orders VALUES (?)", (number,))

    def figures(self, name: str) -> Any:
        """The figures of the source or sink, as the worker publishes them; None without an answer."""
        status = self.operated.client.status()
        return None if status is None else {**status.sources, **status.sinks}.get(name)

    def tick(self, name: str = "processor_telemetry") -> list[Any]:
        """The events of one tick about the source and the sink, which are stored as the daemon does."""
        with dg.build_sensor_context(
            instance=self.instance,
            resources=self.definitions.resources,
            definitions=self.definitions,
            cursor=self.cursors.get(name),
        ) as context:
            data = self.definitions.resolve_sensor_def(name).evaluate_tick(context)
        self.cursors[name] = data.cursor
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        return [each for each in data.asset_events if each.asset_key in (self.source, self.sink)]


@pytest.fixture
def bench(operated: Operated, tmp_path: Path) -> Iterator[Bench]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Bench(operated, tmp_path, instance)


def verdicts(events: list[Any]) -> dict[str, bool]:
    return {each.check_name: each.passed for each in events if isinstance(each, dg.AssetCheckEvaluation)}


def observed(events: list[Any]) -> dict[dg.AssetKey, Any]:
    return {each.asset_key: each.metadata for each in events if isinstance(each, dg.AssetObservation)}


def test_a_source_and_a_sink_are_assets_whose_checks_follow_their_systems(bench: Bench, tmp_path: Path) -> None:
    operated, source, sink, tick = bench.operated, bench.source, bench.sink, bench.tick
    graph = bench.definitions.resolve_asset_graph()
    assert source in graph.get(keys.topic_key("source__orders")).parent_keys
    assert graph.get(sink).parent_keys == {keys.processor_key(operated.group)}
    present = tick("kept_green")
    assert {each.asset_key for each in present if isinstance(each, dg.AssetMaterialization)} == {source, sink}

    first = tick()
    assert verdicts(first) == {"source_alive": True, "sink_writes": True}
    told = observed(first)
    assert told[source]["produced_messages"].value == 3
    assert told[source]["position"].value == "id = 3"
    assert told[source]["remaining_rows"].value == 0
    assert told[sink]["stored_results"].value == 3
    assert told[sink]["lag_records"].value == 0
    assert tick() == [], "nothing has changed"

    with closing(sqlite3.connect(tmp_path / "copy.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")  # another program has the sink's database
        bench.insert(4)
        operated.wait_for(lambda: bench.figures("copies").fails, "the sink has failed")
        (away, _) = tick()
        assert (away.check_name, away.passed, away.severity) == ("sink_writes", False, dg.AssetCheckSeverity.WARN)
        assert "database is locked" in (away.description or "")
        assert f"{tmp_path}/copy.db copies" in (away.description or ""), "the action names the system"
        other.execute("ROLLBACK")
    operated.wait_for(lambda: bench.figures("copies").stored >= 4, "the sink has the row that waited")
    assert verdicts(tick()) == {"sink_writes": True}

    checks = {dg.AssetCheckKey(source, "source_alive"), dg.AssetCheckKey(sink, "sink_writes")}
    job = bench.definitions.resolve_implicit_global_asset_job_def()
    subset = job.get_subset(asset_selection=set(), asset_check_selection=checks)
    ran = subset.execute_in_process(instance=bench.instance).get_asset_check_evaluations()
    assert verdicts(list(ran)) == {"source_alive": True, "sink_writes": True}

    operated.do(Stop(operated.group))
    assert tick() == [], "a worker may be away for a moment"
    stopped = tick()
    assert verdicts(stopped) == {"source_alive": False, "sink_writes": False}
    assert {each.severity for each in stopped} == {dg.AssetCheckSeverity.WARN}
    assert tick() == [], "once is enough"


@pytest.mark.thorough
def test_nobody_is_green_while_the_worker_is_dead_and_the_counts_go_on(bench: Bench) -> None:
    assert verdicts(bench.tick()) == {"source_alive": True, "sink_writes": True}
    status = bench.operated.client.status()
    assert status is not None
    os.kill(status.pid, signal.SIGKILL)
    bench.operated.wait_for(lambda: bench.operated.client.status() is None, "the worker is dead")
    bench.tick()
    assert verdicts(bench.tick()) == {"source_alive": False, "sink_writes": False}
    bench.insert(4)
    bench.operated.do(Restart(bench.operated.group))
    bench.operated.wait_for(lambda: (seen := bench.figures("copies")) and seen.stored >= 1, "the sink has the new row")
    alive = bench.tick()
    assert verdicts(alive) == {"source_alive": True, "sink_writes": True}
    assert observed(alive)[bench.source]["produced_messages"].value == 4, "committed messages are counted once"
