"""A global table's topic is upstream of its processor, even if the processor also reads or writes it as a stream."""

from __future__ import annotations

import dagster as dg
import pytest

from holdfast import Application
from holdfast.assets import keys
from holdfast.assets.factory import build_assets
from holdfast.orchestration.resources import build_resources
from holdfast.processors.application.registration import ProcessorDefinition


@pytest.mark.parametrize("stream_of", ["nothing", "input", "output"])
def test_the_topic_of_a_global_table_is_upstream(stream_of: str) -> None:
    app = Application("unused:1", consumer_group="flights")
    planes = app.topic("planes")
    joined = app.dataframe(app.topic("in")).join_table(app.global_table(planes), on="plane")
    if stream_of == "input":
        app.dataframe(planes).update(print)
    if stream_of == "output":
        joined.to_topic(planes)
    definition = ProcessorDefinition("flights", app, app.topology(), "", (), "module:app")
    made = dg.Definitions.merge(build_assets([definition]), dg.Definitions(resources=build_resources()))
    graph = made.resolve_asset_graph()
    assert keys.topic_key("planes") in graph.get(keys.processor_key("flights")).parent_keys
