"""Topics of tables: one that can lose rows is reported in log, plan and status. A truncated one is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from holdfast import Application, Deploy, HoldfastError, InMemoryCluster, Partition, Provision, TopicConfig
from holdfast.infra.kafka.records import TopicFacts
from holdfast.orchestration.commands.reports.processor_rows import bare_row
from holdfast.orchestration.commands.reports.status import _print
from holdfast.processors.engine.provisioning import CreateTopic, plan
from holdfast.processors.engine.table_topics import table_warnings
from holdfast.processors.engine.topology import code_version_of
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import world_of

KEPT = [
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "delete", "retention.ms": "-1"},
    {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    {"cleanup.policy": "compact,delete", "retention.ms": "-1"},
]
LOST = [
    ({}, "cleanup.policy=delete, retention.ms=604800000"),
    ({"cleanup.policy": "delete", "retention.ms": "5"}, "cleanup.policy=delete, retention.ms=5"),
    ({"cleanup.policy": "compact,delete"}, "cleanup.policy=compact,delete, retention.ms=604800000"),
    (
        {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "9"},
        "cleanup.policy=delete, retention.bytes=9",
    ),
]


def application(**topic: Any) -> Application:
    app = Application("in-memory", consumer_group="orders", auto_offset_reset="earliest", loglevel=None)
    prices = app.table(app.topic("prices", **topic), "prices")
    app.dataframe(app.topic("in")).join_table(prices, "left", lambda left, right: right).to_topic(app.topic("out"))
    return app


def facts(name: str, config: dict[str, str]) -> dict[str, TopicFacts]:
    return {name: TopicFacts(name, "id", 1, 1, config)}


@pytest.mark.parametrize("config", KEPT)
def test_a_topic_that_keeps_its_rows_is_not_warned_of(config: dict[str, str]) -> None:
    assert table_warnings(application().topology(), facts("prices", config)) == ()


@pytest.mark.parametrize(("config", "said"), LOST)
def test_a_topic_that_loses_rows_is_warned_of(config: dict[str, str], said: str) -> None:
    (warning,) = table_warnings(application().topology(), facts("prices", config))
    assert f"Topic prices of a table has {said}: " in warning
    assert "a rebuild of the table lacks them. Set `cleanup.policy=compact` on prices." in warning


def test_streams_and_tables_of_streams_are_not_warned_of() -> None:
    app = Application("in-memory", consumer_group="orders", loglevel=None)
    app.dataframe(app.topic("in")).filter(bool).to_table("newest")
    assert table_warnings(app.topology(), facts("in", {})) == ()


def test_a_global_table_is_warned_of() -> None:
    app = application()
    app.global_table(app.topic("planes"))
    (warning,) = table_warnings(app.topology(), facts("planes", {}))
    assert "a restart of a worker lacks them" in warning


def test_a_missing_topic_of_a_table_is_created_compacted() -> None:
    def created(app: Application) -> dict[str, str]:
        stages = [each for each in plan(app.topology(), {}).stages if isinstance(each, CreateTopic)]
        (config,) = [each.spec.config for each in stages if each.spec.name == "prices"]
        return dict(config)

    assert created(application()) == {"cleanup.policy": "compact"}
    own = TopicConfig(1, extra_config={"cleanup.policy": "delete", "retention.ms": "-1"})
    assert created(application(config=own)) == {"cleanup.policy": "delete", "retention.ms": "-1"}


def test_the_warning_is_no_other_version() -> None:
    config = TopicConfig(1, extra_config={"cleanup.policy": "compact"})
    declared = application(config=config).topology()
    assert declared.table_topics == ("prices",)
    assert code_version_of(declared, "") == code_version_of(replace(declared, table_topics=()), "")


def test_a_worker_logs_it_at_its_start() -> None:
    cluster = InMemoryCluster()
    for topic in ("in", "prices"):
        cluster.create_topic(topic)
    with capture_logs() as logs:
        cluster.run(application())
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == [
        table_warnings(application().topology(), facts("prices", {}))[0]
    ]


@pytest.mark.parametrize("request_", [Provision("orders"), Deploy("orders")])
def test_plans_tell_it(request_: Any) -> None:
    topology = application().topology()
    world = world_of(topology, topics={**world_of(topology).topics, **facts("prices", {})})
    findings = decide(request_, world, topology).findings
    assert any(each.startswith("Topic prices of a table has cleanup.policy=delete") for each in findings)


def test_status_shows_it_once_for_all_workers() -> None:
    console = Console(file=StringIO(), width=240)
    rows = [
        {**bare_row("orders", "healthy", ""), "slot": slot, "warnings": ["Topic prices [of] a table"]} for slot in "01"
    ]
    lists: dict[str, Any] = {name: [] for name in ("adopted", "incidents", "applies", "reasons")}
    _print({"services": {}, "processors": rows, **lists}, console)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().count("warning: Topic prices [of] a table") == 1


def test_a_table_whose_topic_lost_rows_that_were_not_read_is_refused_by_name() -> None:
    cluster = InMemoryCluster()
    for topic in ("in", "prices"):
        cluster.create_topic(topic)
    for number in range(5):
        cluster.produce("prices", json.dumps(number).encode(), b"tea")
    cluster.run(application(), count=2)
    cluster.truncate(Partition("prices", 0), start=4)
    with pytest.raises(HoldfastError, match="prices"):
        cluster.run(application())
