"""Programs with the calls of Quix Streams' quickstart, tutorials and pages, but with other data."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast.dataframe.windows.aggregations as agg
from holdfast import Application, InlineProcess, InMemoryCluster, message_context
from holdfast.kafka.configuration import ConnectionConfig
from holdfast.models import IntegerDeserializer, JSONDeserializer, JSONSerializer, StringSerializer, TopicConfig
from holdfast.models.serializers.avro import AvroDeserializer, AvroSerializer
from holdfast.sinks.core.list import ListSink
from tests.quix_page import PAGE, listed_under

PROGRAMS = PAGE.with_name("quix-programs.md")
#: The programs with sources and callbacks.
SOURCES = Path(__file__).with_name("test_quix_sources.py")
SECTIONS = ("Quickstart", "Tutorials", "Processing", "Producer and consumer", "Debugging", "Branches", "Configuration")
START = 1_700_000_000_000


def application(**given: Any) -> Application:
    return Application(
        **{
            "broker_address": "in-memory",
            "consumer_group": "g",
            "auto_offset_reset": "earliest",
            "loglevel": None,
            **given,
        }
    )


def fed(topic: str, *values: Any, keys: Any = None, step_ms: int = 1) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic(topic)
    for at, value in enumerate(values):
        key = b"k" if keys is None else keys[at]
        cluster.produce(topic, json.dumps(value).encode(), key, timestamp_ms=START + at * step_ms)
    return cluster


def values(cluster: InMemoryCluster, topic: str) -> list[Any]:
    return [json.loads(record.value or b"null") for _, record in cluster.read(topic)]


def keys(cluster: InMemoryCluster, topic: str) -> list[bytes | None]:
    return [record.key for _, record in cluster.read(topic)]


# -- quickstart --------------------------------------------------------------------------------------------------------


def test_a_producer_fills_a_topic() -> None:
    app, cluster = application(), InMemoryCluster()
    cluster.create_topic("notes")
    notes = app.topic(name="notes", value_serializer="json")
    with app.get_producer_on(cluster.connect(InlineProcess(cluster.clock))) as producer:
        for each in ({"room": "r1", "words": "one two"}, {"room": "r2", "words": "three"}):
            made = notes.serialize(key=each["room"], value=each)
            producer.produce(topic=notes.name, key=made.key, value=made.value)
    assert keys(cluster, "notes") == [b"r1", b"r2"]


def test_words_of_messages(capsys: pytest.CaptureFixture[str]) -> None:
    cluster, app = fed("notes", {"words": "one three"}), application()
    sdf = app.dataframe(topic=app.topic(name="notes", value_deserializer="json"))
    sdf = sdf.update(lambda message: print(f"in {message}"))
    sdf = sdf.apply(lambda message: [{"word": word} for word in message["words"].split()], expand=True)
    sdf["size"] = sdf["word"].apply(lambda word: len(word))
    sdf = sdf.update(lambda row: print(f"out {row}"))
    sdf = sdf.to_topic(app.topic(name="sizes", value_serializer="json"))
    cluster.run(app)
    assert values(cluster, "sizes") == [{"word": "one", "size": 3}, {"word": "three", "size": 5}]
    assert capsys.readouterr().out.count("out {") == 2


# -- tutorials ---------------------------------------------------------------------------------------------------------


def test_word_count() -> None:
    def counted(text: str) -> Any:
        return Counter(text.lower().replace(".", " ").split()).items()

    def kept(pair: Any) -> bool:
        word, _ = pair
        return word not in ("the", "and")

    cluster, app = fed("reviews", "Rain and rain. The end."), application()
    sdf = app.dataframe(app.topic("reviews"))
    sdf = sdf.apply(counted, expand=True)
    sdf = sdf.filter(kept)
    sdf = sdf.to_topic(app.topic(name="counts"), key=lambda pair: pair[0])
    cluster.run(app)
    assert dict(zip(keys(cluster, "counts"), values(cluster, "counts"), strict=True)) == {
        b"rain": ["rain", 2],
        b"end": ["end", 1],
    }


def test_anomalies() -> None:
    def hot(mean: float, key: Any, timestamp: int, headers: Any) -> bool | None:
        return True if mean >= 90 else None

    cluster = fed("machines", *({"C": each} for each in (80, 95, 99, 99)), step_ms=1000)
    app = application()
    sdf = app.dataframe(app.topic("machines"))
    sdf = sdf.hopping_window(duration_ms=2000, step_ms=1000).agg(value=agg.Mean(column="C")).current()
    sdf = sdf.apply(lambda result: round(result["value"], 2)).filter(hot, metadata=True)
    sdf = sdf.to_topic(app.topic("alerts"))
    cluster.run(app)
    assert set(values(cluster, "alerts")) == {95.0, 97.0, 99.0}


def test_purchases() -> None:
    def spent(items: Any) -> float:
        return sum(each["cost"] * each["count"] for each in items)

    cluster = fed(
        "sales",
        {"First": "Ann", "Last": "Ek", "Level": "Gold", "Items": [{"cost": 60, "count": 2}]},
        {"First": "Bo", "Last": "Li", "Level": "Iron", "Items": [{"cost": 60, "count": 2}]},
    )
    app = application()
    sdf = app.dataframe(app.topic("sales"))
    sdf = sdf[(sdf["Items"].apply(spent) * 1.1 >= 100.0) & (sdf["Level"].isin(["Gold", "Silver"]))]
    sdf["Name"] = sdf.apply(lambda customer: f"{customer['First']} {customer['Last']}")
    sdf = sdf[["Name", "Level"]]
    sdf = sdf.to_topic(app.topic(name="coupons"))
    cluster.run(app)
    assert values(cluster, "coupons") == [{"Name": "Ann Ek", "Level": "Gold"}]


def test_enrichment(capsys: pytest.CaptureFixture[str]) -> None:
    def merged(panel: Any, weather: Any) -> Any:
        return {**panel, **{f"weather.{name}": each for name, each in weather.items()}}

    cluster = fed("panels", {"watt": 3, "at": 1}, step_ms=10)
    cluster.create_topic("weather")
    cluster.produce("weather", b'{"sun": 7, "at": 0}', b"k", timestamp_ms=START - 5)
    app = application(use_changelog_topics=False, processing_guarantee="at-least-once")
    panels, weather = app.dataframe(app.topic("panels")), app.dataframe(app.topic("weather"))
    joined = panels.join_asof(weather, how="inner", on_merge=merged, grace_ms=timedelta(days=7))
    joined["at"] = joined["at"].apply(str)
    joined["weather.at"] = joined["weather.at"].apply(str)
    joined.print_table(live=False, size=1)
    joined.to_topic(app.topic(name="panels-in-weather"))
    cluster.run(app)
    assert values(cluster, "panels-in-weather") == [{"watt": 3, "at": "1", "weather.sun": 7, "weather.at": "0"}]
    assert "weather.sun" in capsys.readouterr().out


# -- processing --------------------------------------------------------------------------------------------------------


def test_functions_in_a_row_and_in_place() -> None:
    cluster, app = fed("in", [1], [5]), application()
    sdf = app.dataframe(app.topic("in"))
    sdf = sdf.update(lambda items: items.append(1))
    sdf.update(lambda items: items.append(2))
    sdf = sdf.apply(lambda items: sum(items)).apply(lambda x: x + 2).filter(lambda x: x > 8)
    sdf = sdf.to_topic(topic=app.topic("out"))
    cluster.run(app)
    assert values(cluster, "out") == [10]


def test_a_topic_by_a_function() -> None:
    cluster, app = fed("sensors", {"id": 1, "C": 90}, {"id": 2, "C": 20}), application()
    usual, hot = app.topic("usual"), app.topic("hot")

    def route(value: Any, key: Any, timestamp: int, headers: Any) -> Any:
        return hot if value.get("C", 0) > 80 else usual

    sdf = app.dataframe(app.topic("sensors"))
    sdf = sdf.to_topic(topic=route, key=lambda value: f"sensor-{value['id']}")
    cluster.run(app)
    assert (keys(cluster, "hot"), keys(cluster, "usual")) == ([b"sensor-1"], [b"sensor-2"])


def test_another_key_in_the_output() -> None:
    cluster, app = fed("in", {"place": 5}), application()
    sdf = app.dataframe(app.topic("in", key_deserializer="str"))
    out, same = app.topic("out", key_serializer="str"), app.topic("same", key_serializer="str")
    sdf = sdf.to_topic(same)
    sdf = sdf.to_topic(out, key=lambda value: str(value["place"]))
    cluster.run(app)
    assert (keys(cluster, "same"), keys(cluster, "out")) == ([b"k"], [b"5"])


def test_timestamps_headers_and_metadata() -> None:
    cluster, app = fed("in", {"n": 1}, {"n": 2}, keys=[b"INVALID", b"k"]), application()
    sdf = app.dataframe(app.topic("in"))
    sdf = sdf.filter(lambda value, key, timestamp, headers: key != b"INVALID", metadata=True)
    sdf = sdf.set_timestamp(lambda value, key, timestamp, headers: timestamp + 100)
    sdf = sdf.set_headers(lambda value, key, timestamp, headers: [("version", b"v1")])
    sdf["timestamp"] = sdf.apply(lambda value, key, timestamp, headers: timestamp, metadata=True)
    sdf.update(lambda value, key, timestamp, headers: value.update(seen=headers[0][0]), metadata=True)
    sdf.to_topic(app.topic("out"))
    cluster.run(app)
    ((_, record),) = cluster.read("out")
    assert json.loads(record.value or b"") == {"n": 2, "timestamp": START + 101, "seen": "version"}
    assert (record.timestamp_ms, record.headers) == (START + 101, [("version", b"v1")])


def test_the_offset_of_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    cluster, app = fed("in", 1, 2), application()
    sdf = app.dataframe(app.topic("in"))
    sdf = sdf.update(lambda _: print("at", message_context().offset))
    cluster.run(app)
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("at")] == ["at 0", "at 1"]


def test_conditions_and_results_kept_in_variables() -> None:
    cluster, app = fed("in", {"x": 1, "y": 2}, {"x": 0, "y": 9}), application()
    sdf = app.dataframe(app.topic("in"))
    chosen = sdf.apply(lambda value: value["x"] > 0)
    sdf = sdf[chosen]
    both = sdf["x"] + sdf["y"]
    sdf["z"] = both
    sdf.print(pretty=False)
    sdf.update(lambda value: None).print(pretty=False)
    sdf.to_topic(app.topic("out"))
    cluster.run(app)
    assert values(cluster, "out") == [{"x": 1, "y": 2, "z": 3}]


# -- producer and consumer ---------------------------------------------------------------------------------------------


def test_a_loop_of_ones_own() -> None:
    cluster, app, found = fed("mine", 1, 2, 3), application(), list[Any]()
    with app.get_consumer_on(cluster.connect(InlineProcess(cluster.clock)), auto_commit_enable=True) as consumer:
        consumer.subscribe(topics=["mine"])
        while len(found) < 3:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                raise AssertionError(message.error())
            found.append(json.loads(message.value() or b""))
            consumer.store_offsets(message=message)
    assert found == [1, 2, 3]


def test_messages_without_a_topic_object() -> None:
    cluster, app = InMemoryCluster(), application()
    cluster.create_topic("mine")
    with app.get_producer_on(cluster.connect(InlineProcess(cluster.clock))) as producer:
        for each in ({"key": b"a", "value": b"1"}, {"key": b"b", "value": b"2"}):
            producer.produce(topic="mine", key=each["key"], value=each["value"])
    assert keys(cluster, "mine") == [b"a", b"b"]


# -- debugging ---------------------------------------------------------------------------------------------------------


def test_printed_records_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    cluster, app = fed("in", {"id": 1, "name": "Ann"}), application()
    sdf = app.dataframe(app.topic("in"))
    sdf.print(metadata=True)
    sdf.print_table(title="All", size=1)
    sdf = sdf.filter(lambda value: value["id"] > 0)
    sdf.print_table(size=1, title="Kept", columns=["id", "name"], column_widths={"name": 20})
    cluster.run(app)
    out = capsys.readouterr().out
    assert all(text in out for text in ("'key': b'k'", "All", "Kept", "Ann"))


def test_a_sink_that_is_a_list() -> None:
    cluster, app, plain, full = fed("in", {"n": 1}, 5), application(), ListSink(), ListSink(metadata=True)
    sdf = app.dataframe(topic=app.topic("in"))
    sdf.sink(full)
    sdf.sink(plain)
    cluster.run(app)
    assert plain == [{"n": 1}, {"value": 5}]
    assert full[0] == {
        "n": 1,
        "_key": b"k",
        "_timestamp": START,
        "_headers": None,
        "_topic": "in",
        "_partition": 0,
        "_offset": 0,
    }
    plain.clear()
    assert len(plain) == 0


# -- branches ----------------------------------------------------------------------------------------------------------


def test_prizes_by_branches() -> None:
    def told(what: str) -> Any:
        return lambda value: f"{value['Name']} {what} {value['Sum']:.0f}"

    cluster = fed("buys", *({"Name": name, "Sort": "Gold", "Items": [each]} for name, each in (("a", 60), ("b", 300))))
    app = application()
    buys = app.dataframe(app.topic("buys", value_deserializer="json"))
    buys["Sum"] = buys["Items"].apply(sum) * 1.0
    buys.drop(["Items"])
    prizes = buys[buys["Sum"] >= 200.0]
    prizes[prizes["Sum"] < 1000.0].apply(told("car")).to_topic(app.topic("car", value_serializer="str"))
    gold = app.topic("gold", value_serializer="str")
    buys[(buys["Sort"] == "Gold") & (buys["Sum"] >= 50.0)].apply(told("coupon")).to_topic(gold)
    cluster.run(app)
    assert [record.value for _, record in cluster.read("car")] == [b"b car 300"]
    assert [record.value for _, record in cluster.read("gold")] == [b"a coupon 60", b"b coupon 300"]


def test_order_of_branches_with_whole_numbers() -> None:
    def add(n: int) -> Any:
        return lambda value: value + n

    cluster, app = InMemoryCluster(), application()
    cluster.create_topic("in")
    cluster.produce("in", (4).to_bytes(4, "big"), b"k")
    out = app.topic("out", value_serializer="int")
    first = app.dataframe(app.topic("in", value_deserializer=IntegerDeserializer()))
    first = first.apply(add(10)).apply(add(20))
    first.apply(add(70)).apply(add(1)).to_topic(out)
    first.apply(add(102)).to_topic(out)
    first.apply(add(500)).to_topic(out)
    cluster.run(app)
    assert [int.from_bytes(record.value or b"", "big") for _, record in cluster.read("out")] == [105, 136, 534]


def test_exclusive_branches_together_again() -> None:
    cluster, app = fed("orders", {"total": 5}, {"total": 5000}), application()
    orders = app.dataframe(app.topic("orders"))
    big, others = orders[orders["total"] >= 1000], orders[orders["total"] < 1000]
    big.print()
    others.concat(big).to_topic(app.topic("out"))
    cluster.run(app)
    assert sorted(each["total"] for each in values(cluster, "out")) == [5, 5000]


# -- configuration -----------------------------------------------------------------------------------------------------


def test_connections() -> None:
    of = ConnectionConfig(
        bootstrap_servers="a:1",
        security_protocol="sasl_plaintext",
        sasl_mechanism="PLAIN",
        sasl_username="u",
        sasl_password="p",
    )
    same = ConnectionConfig.from_librdkafka_dict(of.as_librdkafka_dict())
    assert Application(broker_address=of, loglevel=None).broker_address == "a:1"
    assert same.client_config == of.client_config


def test_errors_of_processing() -> None:
    seen: list[Any] = []

    def on_processing_error(exc: Exception, row: Any, logger: Any) -> bool:
        seen.append((type(exc), row.offset))
        return True

    cluster, app = fed("in", 0, 2), application(on_processing_error=on_processing_error)
    app.dataframe(app.topic("in")).apply(lambda value: 4 / value).to_topic(app.topic("out"))
    cluster.run(app)
    assert (seen, values(cluster, "out")) == ([(ZeroDivisionError, 0)], [2.0])


def test_topics_with_their_configuration_and_formats() -> None:
    app = application(auto_create_topics=True)
    wide = app.topic(name="wide", config=TopicConfig(replication_factor=3, num_partitions=10))
    schema = {"type": "object", "properties": {"id": {"type": "number"}}, "required": ["id"]}
    record = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int", "default": 0}]}
    checked = app.topic("a", value_deserializer=JSONDeserializer(schema=schema))
    plain = app.topic("b", value_serializer=JSONSerializer(), key_serializer=StringSerializer())
    read = app.topic("c", value_deserializer=AvroDeserializer(schema=record))
    written = app.topic("c", value_serializer=AvroSerializer(schema=record))
    assert (wide.spec().partitions, wide.spec().replication) == (10, 3)
    assert checked.deserialize_value(b'{"id": 1}') == {"id": 1}
    assert (plain.serialize_value({"id": 1}), plain.serialize_key("k")) == (b'{"id":1}', b"k")
    assert read.deserialize_value(written.serialize_value({"id": 7})) == {"id": 7}


def test_the_page_lists_these_programs() -> None:
    here = {name for name in globals() if name.startswith("test_")} - {"test_the_page_lists_these_programs"}
    here |= set(re.findall(r"^def (test_\w+)", SOURCES.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed_under(*SECTIONS, page=PROGRAMS) == here
