"""Each source and each sink is an asset: a source above its topic, a sink below its processor. None shows a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from holdfast import Application
from holdfast.assets import keys
from holdfast.assets.factory import build_assets
from holdfast.orchestration.resources import build_resources
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.engine.connectors import ExternalSystem, ExternalSystemInvalid
from holdfast.processors.engine.topology import Topology
from holdfast.sinks import (
    BatchingSink,
    HttpSink,
    IcebergSink,
    JsonLinesSink,
    ParquetSink,
    RedisSink,
    SinkBatch,
    SqlSink,
)
from holdfast.sources import FileSource, HttpSource, Source, SqlSource

SECRET = "hunter2hunter2hunter2"


class Own(BatchingSink):
    def write(self, batch: SinkBatch) -> None:
        """Stores nothing."""


class Clicks(Source):
    def run(self) -> None:
        """Produces nothing."""

    @property
    def connects_to(self) -> ExternalSystem:
        return ExternalSystem("kinesis", f"stream clicks, password={SECRET}")


def build(folder: Path) -> Application:
    app = Application("unused:1", consumer_group="shop", owners=("team:shop",))
    url = f"postgresql+psycopg://shop:{SECRET}@db/shop"
    app.add_source(SqlSource("orders", url, table="sales.orders", cursor="id"))
    app.add_source(FileSource("files", f"{folder}/*.csv"))
    app.add_source(HttpSource("events", 8_099, token=SECRET))
    merged = app.dataframe(app.topic("in"), source=Clicks("clicks"))
    app.add_source(Clicks("more"), app.topic("late"))
    merged.sink(SqlSink(f"postgresql+psycopg://shop:{SECRET}@db/dwh", "orders", schema="sales"))
    merged.sink(ParquetSink(f"{folder}/out"))
    merged.sink(JsonLinesSink(f"{folder}/lines", name="lines"))
    merged.sink(HttpSink(f"https://shop:{SECRET}@host/path?token={SECRET}"))
    merged.sink(RedisSink(f"redis://shop:{SECRET}@cache:6379/0", prefix="orders:"))
    merged.sink(IcebergSink("sales.orders", {"type": "rest", "uri": f"https://shop:{SECRET}@host", "token": SECRET}))
    merged.sink(Own())
    merged.to_topic(app.topic("out"))
    return app


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Any:
    app = build(tmp_path_factory.mktemp("files"))
    definition = ProcessorDefinition("shop", app, app.topology(), "", app.owners, "module:app")
    made = dg.Definitions.merge(build_assets([definition]), dg.Definitions(resources=build_resources()))
    dg.Definitions.validate_loadable(made)
    return made.resolve_asset_graph()


def of(role: str, name: str) -> dg.AssetKey:
    return keys.connector_key("shop", role, name)


def test_a_source_is_above_its_topic_and_a_sink_below_its_processor(graph: Any) -> None:
    processor = keys.processor_key("shop")
    for name, topic in (("orders", "source__orders"), ("files", "source__files"), ("clicks", "in"), ("more", "late")):
        assert of("source", name) in graph.get(keys.topic_key(topic)).parent_keys
        assert graph.get(keys.topic_key(topic)).group_name == "shop"
        assert not graph.get(of("source", name)).parent_keys
    assert "Fed by source clicks of shop." in graph.get(keys.topic_key("in")).description
    for name in ("orders", "parquet", "lines", "http", "redis", "iceberg", "Own"):
        assert graph.get(of("sink", name)).parent_keys == {processor}


def test_each_of_them_says_what_it_is_and_where(graph: Any) -> None:
    found = {key: graph.get(key) for key in graph.get_all_asset_keys() if key.path[0] == keys.CONNECTORS}
    assert len(found) == 12
    kinds = {"/".join(key.path[1:]): next(iter(node.kinds)) for key, node in found.items()}
    assert kinds == {
        "shop/orders_source": "sql",
        "shop/files_source": "files",
        "shop/events_source": "http",
        "shop/clicks_source": "kinesis",
        "shop/more_source": "kinesis",
        "shop/orders_sink": "sql",
        "shop/parquet_sink": "files",
        "shop/lines_sink": "files",
        "shop/http_sink": "http",
        "shop/redis_sink": "redis",
        "shop/iceberg_sink": "iceberg",
        "shop/Own_sink": "python",
    }
    for key, node in found.items():
        assert SECRET not in str(node.metadata), key
        assert SECRET not in node.description, key
        assert node.owners == ["team:shop"]
        assert node.group_name == "shop"
        check = "source_alive" if key.path[-1].endswith("_source") else "sink_writes"
        assert [each.name for each in node.check_keys] == [check]
    assert found[of("sink", "orders")].metadata["place"] == "postgresql+psycopg://shop:***@db/dwh sales.orders"
    assert found[of("source", "orders")].metadata["place"] == "postgresql+psycopg://shop:***@db/shop sales.orders"
    assert found[of("sink", "http")].metadata["place"] == "https://shop:***@host/path?token=***"
    assert found[of("source", "events")].metadata["place"] == "http://127.0.0.1:8099/events"
    assert found[of("sink", "redis")].metadata["topics"] == ["in"]


def test_the_version_of_a_processor_does_not_depend_on_where_its_data_goes(tmp_path: Path) -> None:
    def version(folder: str) -> Topology:
        app = Application("unused:1", consumer_group="shop")
        app.dataframe(app.topic("in")).sink(JsonLinesSink(f"{tmp_path}/{folder}"))
        return app.topology()

    assert version("a").connectors != version("b").connectors
    assert version("a").code_version == version("b").code_version


def test_a_sink_of_two_streams_gets_the_results_of_both() -> None:
    app, sink = Application("unused:1", consumer_group="shop"), Own()
    for topic in ("a", "b"):
        app.dataframe(app.topic(topic)).sink(sink)
    (found,) = app.topology().connectors
    assert found.topics == ("a", "b")


@pytest.mark.parametrize("given", ["kinesis", None, 3])
def test_another_answer_than_a_system_is_refused(given: Any) -> None:
    class Wrong(Own):
        connects_to = given

    app = Application("unused:1", consumer_group="shop")
    app.dataframe(app.topic("in")).sink(Wrong())
    with pytest.raises(ExternalSystemInvalid, match="`connects_to` of sink 'Wrong' returns"):
        app.topology()


@pytest.mark.parametrize(("kind", "place"), [("Two Words", ""), ("ü", ""), (3, ""), ("sql", None)])
def test_a_kind_that_can_be_no_tag_is_refused(kind: Any, place: Any) -> None:
    with pytest.raises(ExternalSystemInvalid, match="of an ExternalSystem is"):
        ExternalSystem(kind, place)
