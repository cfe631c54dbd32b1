"""Generates the reference page of every name that ``holdfast`` exports, from signatures and docstrings (griffe)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import griffe

from tests.docs.unnamed_classes import UNNAMED

PROJECT = Path(__file__).resolve().parent.parent.parent
LINE_MAX = 118
#: Base classes whose subclasses have no written ``__init__``: users pass the fields as arguments. So the page shows the
#: fields as the signature.
STRUCTS = {"Struct", "NamedTuple"}
#: For each page: its title, its purpose, an example, and the names that it documents.
PAGES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "api-processors.md": (
        "Python API: processors",
        "Everything that declares a processor. [Declaring a processor](../processors.md) shows how it is used.",
        "from holdfast import Application, Count\n\n"
        'app = Application("localhost:9092", consumer_group="shop")\n'
        'app.dataframe(app.topic("orders")).aggregate({"orders": Count()}).to_topic(app.topic("totals"))',
        ("Application", "MessageContext", "message_context", "same_as"),
    ),
    "api-topics.md": (
        "Python API: topics",
        "What `Application.topic` returns, how a topic is created, and messages outside of streams.",
        "from holdfast import Application, TopicConfig\n\n"
        'app = Application("localhost:9092", consumer_group="shop")\n'
        'orders = app.topic("orders", config=TopicConfig(num_partitions=6))',
        ("Topic", "TopicConfig"),
    ),
    "api-formats.md": (
        "Python API: formats",
        "(De)serializers with a schema. [Schema registry](../schema-registry.md) has the rules.",
        "from holdfast import Application, AvroDeserializer\n\n"
        'app = Application("localhost:9092", consumer_group="shop")\n'
        'names = app.topic("names", value_deserializer=AvroDeserializer({"type": "string"}))',
        (
            "AvroDeserializer",
            "AvroSerializer",
            "JSONDeserializer",
            "JSONSerializer",
            "ProtobufDeserializer",
            "ProtobufSerializer",
        ),
    ),
    "api-schema-registry.md": (
        "Python API: schema registry",
        "How formats reach a schema registry. [Schema registry](../schema-registry.md) has the rules.",
        "from holdfast import Application, AvroDeserializer, SchemaRegistryClientConfig\n\n"
        'app = Application("localhost:9092", consumer_group="shop")\n'
        "read = AvroDeserializer(schema_registry_client_config=SchemaRegistryClientConfig())\n"
        'orders = app.topic("orders", value_deserializer=read)',
        ("SchemaRegistryClientConfig", "SchemaRegistrySerializationConfig"),
    ),
    "api-tables.md": (
        "Python API: topics and tables",
        "What declares topics and tables, and tables made of tables. [Tables](../tables.md) and\n"
        "[tables that change](../tables-that-change.md) have the rules.",
        "from holdfast import Application, Count\n\n"
        'app = Application("localhost:9092", consumer_group="shop")\n'
        'orders = app.table(app.topic("orders"))\n'
        'orders.group_by("status").aggregate(n=Count()).to_stream().to_topic(app.topic("orders-by-status"))',
        (),
    ),
    "api-joins.md": (
        "Python API: joins",
        "What joins a stream with another one, or with a table. [Joins](../joins.md) has the rules.",
        "from holdfast import Application\n\n"
        'app = Application("localhost:9092", consumer_group="shop")\n'
        'prices = app.table(app.topic("prices"))\n'
        'app.dataframe(app.topic("orders")).join_table(prices, on_merge="keep-left").to_topic(app.topic("priced"))',
        (),
    ),
    "api-waiting.md": (
        "Python API: waiting for other systems",
        "Steps that await an async function for each message. [Steps that wait](../waiting.md) has the rules.",
        "from holdfast import Application\n\n\n"
        "async def priced(order: dict) -> dict:\n"
        '    return {**order, "price": 3}\n\n\n'
        'app = Application("localhost:9092", consumer_group="shop")\n'
        'app.dataframe(app.topic("orders")).apply_async(priced, timeout=2).to_topic(app.topic("priced"))',
        ("NotFound",),
    ),
    "api-streams.md": (
        "Python API: streams",
        "Steps of a stream. [Declaring a processor](../processors.md) shows how they are used.",
        "from holdfast import Application\n\n"
        'app = Application("localhost:9092", consumer_group="shop")\n'
        'orders = app.dataframe(app.topic("orders"))\n'
        'orders.filter(lambda order: order["amount"] > 100).to_topic(app.topic("large"))',
        ("StreamingDataFrame",),
    ),
    "api-columns.md": (
        "Python API: columns",
        "Expressions of columns, and the steps of a stream that take them. [Columns](../columns.md) has the rules.",
        "from holdfast import Application\n\n"
        'app = Application("localhost:9092", consumer_group="shop")\n'
        'orders = app.dataframe(app.topic("orders"))\n'
        'orders["total"] = orders["amount"] * 1.19\n'
        'orders[orders["total"] > 100].to_topic(app.topic("large"))',
        ("StreamingSeries",),
    ),
    "api-state.md": (
        "Python API: state and timers",
        "What functions do with the state of a key, and processors with its timers. [State](../state.md) and "
        "[Timers](../timers.md) have the rules.",
        "from holdfast import State\n\n\n"
        "def count(value: dict, state: State) -> dict:\n"
        '    total = state.get("total", default=0) + 1\n'
        '    state.set("total", total)\n'
        '    return {**value, "total": total}',
        ("State", "Context"),
    ),
    "api-schedules.md": (
        "Python API: schedules",
        "What runs by the clock instead of for each message. [Schedules](../schedules.md) has the rules.",
        "from datetime import timedelta\n\nfrom holdfast import Application, Slot\n\n"
        'app = Application("localhost:9092", consumer_group="shop")\n'
        'app.dataframe(app.topic("orders"))\n\n\n'
        '@app.every(timedelta(minutes=1), to=app.topic("ticks"))\n'
        "def tick(slot: Slot) -> None:\n"
        '    slot.send({"at": slot.time})',
        ("Slot",),
    ),
    "api-sources.md": (
        "Python API: sources",
        "What brings messages from outside of Kafka into a topic. [Sources](../sources.md) has the rules.",
        "from holdfast import Application, InMemoryCluster\nfrom holdfast.sources import StatefulSource\n\n\n"
        "class Numbers(StatefulSource):\n"
        "    def run(self) -> None:\n"
        '        while self.running and self.state.get("number", 0) < 3:\n'
        '            number = self.state.increment("number")\n'
        "            self.produce(str(number))\n"
        "            self.flush()\n\n\n"
        "def test_each_number_comes_once() -> None:\n"
        "    cluster = InMemoryCluster()\n"
        '    app = Application("localhost:9092", consumer_group="shop")\n'
        '    app.dataframe(source=Numbers("numbers"))\n'
        "    cluster.run(app)\n"
        '    assert [record.value for _, record in cluster.read("source__numbers")] == [b"1", b"2", b"3"]',
        (),
    ),
    "api-shipped-sources.md": (
        "Python API: sources that ship",
        "Sources of files, SQL tables and HTTP requests. [Sources that ship](../sources-that-ship.md) has the rules.",
        "from holdfast import Application\nfrom holdfast.sources import CsvFormat, FileSource\n\n\n"
        "def build() -> Application:\n"
        '    app = Application("localhost:9092", consumer_group="shop")\n'
        '    orders = FileSource("orders", "/srv/in/*.csv", key="id", format=CsvFormat(delimiter=";"))\n'
        "    app.dataframe(source=orders)\n"
        "    return app",
        (),
    ),
    "api-connectors.md": (
        "Python API: sources and sinks in Dagster",
        "What Dagster shows of a source and a sink. [Sources and sinks in Dagster](../connectors.md) has the rules.",
        "from holdfast import Application\nfrom holdfast.sinks import JsonLinesSink\n\n\n"
        "def test_where_results_go() -> None:\n"
        '    app = Application("localhost:9092", consumer_group="shop")\n'
        '    app.dataframe(app.topic("orders")).sink(JsonLinesSink("/srv/orders"))\n'
        "    (sink,) = app.topology().connectors\n"
        '    assert (sink.system.kind, sink.system.place) == ("files", "/srv/orders")',
        (),
    ),
    "api-sinks.md": (
        "Python API: sinks",
        "What stores results in systems other than Kafka. [Sinks](../sinks.md) has the rules, and "
        "[sinks that ship](../sinks-that-ship.md) says what `kill -9` can do to each.",
        "from pathlib import Path\n\nfrom holdfast import Application, InMemoryCluster\n"
        "from holdfast.sinks import Patience, SqlSink\n\n\n"
        "def test_an_order_is_a_row(tmp_path: Path) -> None:\n"
        '    cluster, file = InMemoryCluster(), tmp_path / "orders.db"\n    cluster.create_topic("orders")\n'
        '    cluster.produce("orders", b\'{"left": 3}\', b"nails")\n'
        '    app = Application("localhost:9092", consumer_group="shop", auto_offset_reset="earliest")\n'
        "    retry = Patience(give_up_s=3600)\n"
        '    sink = SqlSink(f"sqlite:///{file}", "orders", create=True, retry=retry)\n'
        '    app.dataframe(app.topic("orders")).sink(sink)\n'
        "    cluster.run(app)\n"
        "    assert file.exists()",
        (),
    ),
    "api-sinks-staging.md": (
        "Python API: staging sinks",
        "Sinks that are exactly-once, because they stage results before the commit and publish them after it. "
        "[Sinks](../sinks.md) has the rules.",
        "from pathlib import Path\n\nfrom holdfast import Application, InMemoryCluster\n"
        "from holdfast.sinks import JsonLinesSink\n\n\n"
        "def test_each_order_is_in_a_file_once(tmp_path: Path) -> None:\n"
        '    cluster = InMemoryCluster()\n    cluster.create_topic("orders")\n'
        '    cluster.produce("orders", b\'{"left": 3}\', b"nails")\n'
        '    app = Application("localhost:9092", consumer_group="shop", auto_offset_reset="earliest")\n'
        '    app.dataframe(app.topic("orders")).sink(JsonLinesSink(str(tmp_path)))\n'
        "    cluster.run(app)\n"
        '    (file,) = tmp_path.glob("*.jsonl")\n'
        "    assert '\"left\":3' in file.read_text()",
        (),
    ),
    "api-sinks-systems.md": (
        "Python API: sinks of other systems",
        "Results in Iceberg tables, in Redis, and sent to HTTP services. [Sinks that ship](../sinks-that-ship.md) has "
        "the rules.",
        "from holdfast import Application\nfrom holdfast.sinks import HttpSink\n\n\n"
        "def build() -> Application:\n"
        '    app = Application("localhost:9092", consumer_group="shop", commit_every=1_000)\n'
        '    app.dataframe(app.topic("orders")).sink(HttpSink("https://shop.example/orders"))\n'
        "    return app\n\n\n"
        "def test_orders_are_read() -> None:\n"
        '    assert [topic.name for topic in build().topology().inputs] == ["orders"]',
        (),
    ),
    "api-windows.md": (
        "Python API: windows",
        "What declares a window of a stream. [Its columns](api-window-columns.md) come next; [windows](../windows.md) "
        "has the rules.",
        "from holdfast import Application\n\n"
        'app = Application("localhost:9092", consumer_group="shop")\n'
        'app.dataframe(app.topic("orders")).tumbling_window(60_000).count().final()',
        (),
    ),
    "api-window-columns.md": (
        "Python API: columns of windows",
        "What a window computes, and when it is sent. [Windows](../windows.md) has the rules.",
        "from holdfast import Application, Count, Sum\n\n"
        'app = Application("localhost:9092", consumer_group="shop")\n'
        'minutes = app.dataframe(app.topic("orders")).tumbling_window(60_000)\n'
        'minutes.agg(orders=Count(), total=Sum("amount")).current()',
        (),
    ),
    "api-aggregates.md": (
        "Python API: aggregates",
        "The columns of `StreamingDataFrame.aggregate`. [Aggregations](../aggregations.md) has the rules.",
        'from holdfast import Count, Sum\n\ncolumns = {"orders": Count(), "total": Sum("amount")}',
        ("Count", "Sum", "Mean", "Min", "Max", "Last", "Collect"),
    ),
    "api-testing.md": (
        "Python API: tests",
        "A Kafka in memory and a clock that tests set. [Testing a processor](../testing.md) has a whole test.",
        "from holdfast import InMemoryCluster\n\n"
        "cluster = InMemoryCluster()\n"
        'cluster.create_topic("orders")\n'
        'cluster.produce("orders", b"{}", b"alice")\n'
        'assert len(cluster.read("orders")) == 1',
        ("InMemoryCluster",),
    ),
    "api-faults.md": (
        "Python API: faults in tests",
        "Processes, clocks and networks of the cluster in memory, for tests that kill a worker or lose an answer. "
        "[Testing a processor](../testing.md) shows how they are used.",
        "from holdfast import InMemoryCluster, Network, VirtualClock\n\n"
        "cluster = InMemoryCluster(clock=VirtualClock(), network=Network())\n"
        'cluster.create_topic("orders", partitions=2)',
        ("InlineProcess", "VirtualClock", "Network", "Fate", "Partition"),
    ),
    "api-contracts.md": (
        "Python API: contracts",
        "Tests that you run on your own classes. "
        "[Sources that ship](../sources-that-ship.md#test-a-source-of-your-own) shows how they are used.",
        "from holdfast.sources import FileSource\nfrom holdfast.testing import SourceContract\n\n\n"
        "class TestOrders(SourceContract):\n"
        "    def source(self) -> FileSource:\n"
        '        return FileSource("orders", "orders.jsonl")\n\n'
        "    def expected(self) -> list[tuple[bytes | None, bytes]]:\n"
        "        return [(None, b'{\"id\":1}')]",
        (),
    ),
    "api-verbs.md": (
        "Python API: verbs",
        "Plans and applies from a program. [Verbs](../verbs.md) explains each.",
        "from holdfast import Clear, Keys\n\n"
        'request = Clear("fleet", stores=("aircraft",), selection=Keys(("N14228",)))\n'
        'assert request.processor == "fleet"',
        (
            "open_verbs",
            "Adopt",
            "Backfill",
            "Clean",
            "Clear",
            "Compact",
            "Deploy",
            "Erase",
            "Provision",
            "PutBack",
            "Replay",
            "Reposition",
            "Restart",
            "Restore",
            "Rollback",
            "Scale",
            "Stop",
        ),
    ),
    "api-selections.md": (
        "Python API: selections of keys",
        "Which keys of a store a [verb](api-verbs.md) concerns. [Verbs](../verbs.md) explains each.",
        "from holdfast import Clear, Prefix\n\n"
        'request = Clear("fleet", stores=("aircraft",), selection=Prefix("N1"))\n'
        'assert request.selection == Prefix("N1")',
        ("Everything", "Keys", "Prefix"),
    ),
    "api-topology.md": (
        "Python API: topology and definitions",
        "What a processor consists of, and what a Dagster project has of it. [Grouping](../grouping.md) draws one.",
        "from holdfast import Application\n\n"
        'app = Application(consumer_group="carriers")\n'
        'flights = app.dataframe(app.topic("flights")).filter(lambda flight: "carrier" in flight)\n'
        'flights.group_by("carrier").to_table("newest")\n'
        'assert [spec.name for spec in app.topology().sources] == ["flights"]',
        ("Topology", "definitions"),
    ),
    "api-state-client.md": (
        "Python API: reading state",
        "What reads a processor's state from other programs. [Read state from a program](../state-client.md) has the\n"
        "rules.",
        "from holdfast import StateAway, StateClient\n\n\n"
        "def orders_of(client: StateClient, customer: str) -> int | None:\n"
        "    try:\n"
        '        return client.get("totals", customer, "orders", default=0)\n'
        "    except StateAway:\n"
        "        return None",
        (
            "StateClient",
            "StateAnswer",
            "StateAway",
            "StateRefused",
            "StoreUnknown",
            "QueryWrong",
        ),
    ),
    "api-async-state-client.md": (
        "Python API: reading state with asyncio",
        "The same methods as those of [StateClient](api-state-client.md), for programs with asyncio.",
        "from holdfast import AsyncStateClient\n\n\n"
        "async def orders_of(client: AsyncStateClient, customer: str) -> int:\n"
        '    return await client.get("totals", customer, "orders", default=0)',
        ("AsyncStateClient",),
    ),
    "api-operating.md": (
        "Python API: tables, settings, errors",
        "What a program needs that reads tables or operates processors. [The warehouse](../warehouse.md),\n"
        "[settings](../settings.md) and [errors](errors.md) have the rules.",
        "from holdfast import HoldfastError, load_settings\n\n"
        "try:\n"
        "    print(load_settings().paths.home)\n"
        "except HoldfastError as error:\n"
        "    print(error.message, error.action)",
        (
            "read_table",
            "key_at",
            "state_at",
            "Settings",
            "load_settings",
            "HoldfastError",
            "ApplicationInvalid",
            "KafkaFailed",
            "ProcessingFailed",
            "RecordTooLarge",
            "StateFailed",
            "ValueNotStorable",
        ),
    ),
}


@cache
def api_pages() -> dict[str, str]:
    """The text of each page, by file name."""
    # griffe warns about parameters in struct docstrings, because it does not know that the fields are the signature
    logging.getLogger("griffe").setLevel(logging.CRITICAL)
    package = griffe.load("holdfast", search_paths=[str(PROJECT)], docstring_parser="google")
    return {page: _page(package, page, *described) for page, described in PAGES.items()}


def _page(package: Any, page: str, title: str, purpose: str, example: str, names: Sequence[str]) -> str:
    lines = [f"# {title}", "", purpose, "", "```python", example, "```"]
    for name in names:
        lines += ["", *_documented(package[name].final_target, name)]
    for name, path in UNNAMED.get(page, {}).items():
        lines += ["", *_documented(package[path], name)]
    return "\n".join(lines) + "\n"


def _documented(found: Any, name: str) -> Iterator[str]:
    """The section of a class with its fields and public methods, or of a function."""
    yield f"## {name}"
    if not found.is_class:
        yield from ("", *_signature(found, name), *_text(found))
        return
    members = [each for each in found.members.values() if not each.name.startswith("_") and not each.is_alias]
    made = found.members.get("__init__")
    if made is not None:
        yield from ("", *_signature(made, name))
    elif _bases(found) & STRUCTS:
        yield from ("", *_code(name, [_declared(each) for each in members if each.is_attribute], ""))
    yield from _text(found)
    rows = [each for each in members if each.is_attribute and _is_shown(each)]
    if rows:
        yield from ("", "| field | meaning |", "|---|---|")
        yield from (f"| `{_cell(_declared(each))}` | {_cell(_first(each))} |" for each in rows)
    if "Aggregator" in _bases(found):
        return  # only the engine calls the methods of an aggregator
    for each in members:
        if each.is_function:
            yield from ("", f"### {name}.{each.name}", "", *_signature(each, each.name), *_text(each))


def _bases(found: Any) -> set[str]:
    """The names of a class's bases, without their modules."""
    return {str(base).rpartition(".")[2] for base in found.bases}


def _is_shown(field: Any) -> bool:
    return "property" in field.labels or field.docstring is not None or "dataclass-field" in field.labels


def _declared(field: Any) -> str:
    kind = f": {field.annotation}" if field.annotation is not None else ""
    value = f" = {field.value}" if field.value is not None and "property" not in field.labels else ""
    return f"{field.name}{kind}{value}"


def _signature(function: Any, name: str) -> Iterator[str]:
    """The signature of a function as a code block."""
    parts: list[str] = []
    starred = False
    for each in function.parameters:
        if each.name == "self":
            continue
        if each.kind is griffe.ParameterKind.keyword_only and not starred:
            parts.append("*")
            starred = True
        mark = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
        starred = starred or mark == "*"
        # an InitVar is an ordinary argument for users
        kind = f": {each.annotation}".replace("InitVar[Field]", "Field") if each.annotation is not None else ""
        value = "" if each.default is None or mark else f" = {each.default}" if kind else f"={each.default}"
        parts.append(f"{mark}{each.name}{kind}{value}")
    returns = "" if function.returns is None or function.name == "__init__" else f" -> {function.returns}"
    yield from _code(name, parts, returns)


def _code(name: str, parts: Sequence[str], returns: str) -> Iterator[str]:
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= LINE_MAX:
        yield from ("```text", line, "```")
    else:
        yield from ("```text", f"{name}(", *_filled(parts), f"){returns}", "```")


def _filled(parts: Sequence[str]) -> Iterator[str]:
    """The parameters, on as few lines as possible."""
    line = "   "
    for each in parts:
        if len(line) + len(each) > LINE_MAX - 2:
            yield line
            line = "   "
        line += f" {each},"
    yield line


def _text(found: Any) -> Iterator[str]:
    """The docstring as Markdown: its text, then arguments and errors as lists."""
    if found.docstring is None:
        return
    for section in found.docstring.parsed:
        match section.kind:
            case griffe.DocstringSectionKind.text:
                yield from ("", _plain(section.value))
            case griffe.DocstringSectionKind.parameters:
                yield from ("", "| argument | meaning |", "|---|---|")
                yield from (f"| `{each.name}` | {_cell(each.description)} |" for each in section.value)
            case griffe.DocstringSectionKind.raises:
                yield ""
                yield from (f"- Raises `{each.annotation}`: {_cell(each.description)}" for each in section.value)
            case griffe.DocstringSectionKind.returns | griffe.DocstringSectionKind.yields:
                yield from ("", "Returns: " + " ".join(_cell(each.description) for each in section.value))
            case griffe.DocstringSectionKind.examples:
                yield ""
                yield from (str(text) for _, text in section.value)
            case griffe.DocstringSectionKind.admonition:
                yield from ("", f"{section.title}: {_cell(section.value.description)}")


def _first(found: Any) -> str:
    return "" if found.docstring is None else found.docstring.value.split("\n\n")[0]


def _plain(text: str) -> str:
    """The text of a docstring as Markdown; literal blocks stay code."""
    return text.replace("::\n", ":\n").replace("``", "`")


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")
