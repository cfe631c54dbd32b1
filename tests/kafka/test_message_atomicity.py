"""A message takes effect in all stores, outputs and offsets, or in none.

A failed message stops the worker, is skipped, or becomes a dead letter.
"""

import json
import threading

import pytest
from confluent_kafka import Producer

from holdfast import Application
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.paths import Paths
from holdfast.infra.settings import load_settings
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.engine.state.databases.checkpoint_reader import iterate_checkpoint
from tests.mechanics.tiers import variants

STORES = ("first", "second")
SLOT = "0"


class Refused(RuntimeError):
    """The error that the functions of these tests raise."""


def first(value, state):
    """Change several keys of one store. A bad message also deletes a key and adds a key."""
    state.set("seen", [*state.get("seen", []), value["n"]])
    if value["bad"]:
        state.delete("kept")
        state.set("only bad", value["n"])
    else:
        state.set("kept", value["n"])
    return value


def second(value, state):
    """Change another store and fail, after the message's first output was already emitted."""
    state.set("total", state.get("total", 0) + value["n"])
    if value["bad"] == "function":
        raise Refused(f"number {value['n']} is bad")
    if value["bad"] == "exit":
        raise SystemExit(3)
    return {"n": value["n"], "total": state.get("total"), "bad": value["bad"]}


def each(value):
    """Emit two outputs for each message. A bad message may fail between these outputs."""
    yield {"n": value["n"], "total": value["total"], "part": 1}
    if value["bad"] == "expansion":
        raise Refused(f"number {value['n']} is bad")
    yield {"n": value["n"], "total": value["total"], "part": 2}


class Pipeline:
    """A topology with two stores and two output topics.

    A message emits its first output before a step that may fail.
    """

    def __init__(self, stream):
        self.stream, self.fed = stream, []

    def application(self, **options):
        stream = self.stream
        app = Application(
            stream.bootstrap,
            consumer_group=stream.group,
            state_dir=stream.state_dir,
            slot=SLOT,
            **{
                "auto_offset_reset": "earliest",
                "commit_interval": 0.2,
                "consumer_extra_config": {"session.timeout.ms": 6000},
                "loglevel": None,
                **options,
            },
        )
        frame = app.dataframe(app.topic(stream.source)).apply(first, stateful=True, store="first")
        frame = frame.to_topic(app.topic(f"{stream.group}-early"))
        frame = frame.apply(second, stateful=True, store="second").apply(each, expand=True)
        frame.to_topic(app.topic(f"{stream.group}-late"))
        return app

    def feed(self, messages):
        """Send messages, given as (key, value). Values are encoded as JSON; bytes and None are sent unchanged."""
        producer = Producer({"bootstrap.servers": self.stream.bootstrap, "partitioner": "murmur2_random"})
        for number, (key, value) in enumerate(messages):
            raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            headers = [("number", b"%d" % number), ("twice", b"1"), ("twice", b"2"), ("empty", None)]
            producer.produce(self.stream.source, raw, key, headers=headers, timestamp=1_000_000 + number)
        assert producer.flush(60) == 0

    def committed(self):
        offsets = self.stream.topics.committed_offsets(self.stream.group)
        return {
            number: offsets.get(Partition(self.stream.source, number), 0) for number in range(self.stream.partitions)
        }

    def expected(self):
        """Return the expected stores and outputs by key.

        They are computed from the good messages below the committed offsets.
        """
        stores, early, late = {name: {} for name in STORES}, {}, {}
        for record in self.inputs():
            value, key = json.loads(record.value), record.key
            stores["first"][key, "seen"] = [*stores["first"].get((key, "seen"), []), value["n"]]
            stores["first"][key, "kept"] = value["n"]
            total = stores["second"].get((key, "total"), 0) + value["n"]
            stores["second"][key, "total"] = total
            early.setdefault(key, []).append(value)
            late.setdefault(key, []).extend({"n": value["n"], "total": total, "part": part} for part in (1, 2))
        return stores, early, late

    def inputs(self):
        committed = self.committed()
        return [
            record
            for number, end in committed.items()
            for record in self.partition(number)
            if record.offset < end and is_good(record)
        ]

    def partition(self, number):
        end = self.stream.topics.end_offsets(self.stream.source, committed=True)[number]
        return list(read_range(self.stream.bootstrap, self.stream.source, number, 0, end))

    def is_whole(self):
        """Assert that changelogs, RocksDB and outputs hold exactly the good messages below the committed offsets."""
        stores, early, late = self.expected()
        for name in STORES:
            changelog = {}
            for record in self.stream.read(changelog_topic(self.stream.group, name)):
                if record.key != META_KEY:
                    changelog[record.key] = record.value
            folded = {split_key(key): decode_value(value) for key, value in changelog.items() if value is not None}
            assert folded == stores[name]
            disk = {}
            for path in (self.stream.state_dir / self.stream.group / SLOT).glob("*-[0-9]*"):
                disk.update(iterate_checkpoint(path, name))
            assert disk == {key: value for key, value in changelog.items() if value is not None}
        assert self.outputs("early") == early
        assert self.outputs("late") == late

    def outputs(self, name):
        found = {}
        for record in self.stream.read(f"{self.stream.group}-{name}"):
            found.setdefault(record.key, []).append(json.loads(record.value))
        return found


def is_good(record):
    try:
        return record.key is not None and not json.loads(record.value or b"")["bad"]
    except ValueError:
        return False


def good(number):
    return b"k%d" % (number % 7), {"n": number, "bad": None}


def bad(number, how):
    return b"k%d" % (number % 7), {"n": number, "bad": how}


@pytest.fixture
def pipeline(stream):
    return Pipeline(stream)


def say_no(error, message, logger):
    return False


def fail_too(error, message, logger):
    raise ValueError("the callback is no better")


@pytest.mark.parametrize(
    ("how", "options", "raised", "text"),
    variants(
        [
            ("function", {}, ProcessingFailed, "raised Refused: number 30 is bad"),
            (
                "expansion",
                {"processing_guarantee": "at-least-once", "on_processing_error": say_no},
                ProcessingFailed,
                "raised Refused: number 30 is bad",
            ),
            ("expansion", {"on_processing_error": fail_too}, ProcessingFailed, "the callback is no better"),
        ]
    ),
)
def test_a_message_that_stops_the_processor_leaves_nothing_and_all_before_it_is_committed(
    pipeline, how, options, raised, text
):
    pipeline.feed([*(good(number) for number in range(30)), bad(30, how), *(good(number) for number in range(31, 60))])
    for _ in range(2):
        with pytest.raises(raised, match=text):
            pipeline.application(**options).run(timeout=30)
    pipeline.is_whole()
    stopped = pipeline.committed()
    waiting_at_the_bad_one = [
        json.loads(records[stopped[number]].value)["n"]
        for number in stopped
        if stopped[number] < len(records := pipeline.partition(number))
    ]
    assert 30 in waiting_at_the_bad_one


def test_a_function_that_would_end_the_process_fails_its_message(pipeline):
    messages = [*(good(number) for number in range(10)), bad(10, "exit"), good(11)]
    pipeline.feed(messages)
    with pytest.raises(ProcessingFailed, match="FunctionExits"):
        pipeline.application().run(timeout=30)
    pipeline.is_whole()
    left = len(messages) - sum(pipeline.committed().values())
    pipeline.application(dead_letter_topic=pipeline.stream.dead_letters).run(count=left, timeout=60)
    pipeline.is_whole()
    (letter,) = pipeline.stream.read(pipeline.stream.dead_letters)
    assert json.loads(letter.value)["n"] == 10


@pytest.mark.parametrize("guarantee", variants(["exactly-once", "at-least-once"]))
def test_dead_letters_are_the_messages_themselves_with_what_went_wrong(pipeline, guarantee):
    stream = pipeline.stream
    messages = [
        *(good(number) for number in range(20)),
        bad(20, "function"),
        bad(21, "expansion"),
        (b"k1", b"\xff{not json"),
        (None, {"n": 23, "bad": None}),
        (b"k1", None),
        *(good(number) for number in range(25, 40)),
    ]
    pipeline.feed(messages)
    app = pipeline.application(dead_letter_topic=stream.dead_letters, processing_guarantee=guarantee)
    version = app.topology().code_version
    app.run(count=len(messages), timeout=30)
    pipeline.is_whole()
    letters = {(record.key, record.value): record for record in stream.read(stream.dead_letters)}
    places = {}
    for number in range(stream.partitions):
        for record in pipeline.partition(number):
            if not is_good(record):
                places[record.key, record.value] = (number, record)
    assert len(letters) == len(places) == 5 == len(stream.read(stream.dead_letters))
    why = {
        20: ("Refused", "number 20 is bad"),
        21: ("Refused", "number 21 is bad"),
        22: ("ValueUnreadable", "can't be read"),
        23: ("NullKey", "without a key"),
        24: ("TypeError", "NoneType"),
    }
    for place, letter in letters.items():
        number, record = places[place]
        ours = dict(letter.headers[len(record.headers) :])
        assert letter.headers[: len(record.headers)] == record.headers
        assert letter.timestamp_ms == record.timestamp_ms
        assert {name: ours[f"holdfast.{name}"].decode() for name in ("topic", "partition", "offset")} == {
            "topic": stream.source,
            "partition": str(number),
            "offset": str(record.offset),
        }
        assert ours["holdfast.processor"] == stream.group.encode()
        assert ours["holdfast.code_version"] == version.encode()
        kind, reason = why[int(dict(record.headers)["number"])]
        # ``ValueUnreadable`` and ``NullKey`` are errors of Holdfast with an action. The other errors of this test come
        # from the user's functions and have none.
        tells = kind in ("ValueUnreadable", "NullKey")
        assert len(ours) == 9 + tells == 9 + ("holdfast.error.action" in ours)
        assert ours["holdfast.kind"] == b"message"
        assert ours["holdfast.error.type"] == kind.encode()
        assert reason.encode() in ours["holdfast.error"]


def test_skipped_messages_are_counted_shown_to_the_callback_and_leave_nothing(pipeline, tmp_path, waiting):
    stream, asked = pipeline.stream, []

    def skip(error, message, logger):
        asked.append((type(error).__name__, message.offset, json.loads(message.value)["n"], logger.name))
        return True

    bads = {10: "function", 11: "expansion", 25: "function"}
    messages = [bad(number, bads[number]) if number in bads else good(number) for number in range(40)]
    pipeline.feed(messages)
    app, settings = pipeline.application(on_processing_error=skip), load_settings(home=tmp_path)
    running = threading.Thread(target=app.run_on, args=(app.cluster(settings), settings), kwargs={"serve": True})
    running.start()
    client = ProcessorClient(stream.group, SLOT, Paths(tmp_path))
    try:
        waiting(lambda: sum(pipeline.committed().values()) == len(messages), "all to be committed")
        records = client.status().records
        assert (records["processed"], records["skipped"], records["dead_lettered"]) == (40, 3, 0)
    finally:
        app.stop()
        running.join(60)
    pipeline.is_whole()
    assert sorted(number for _, _, number, _ in asked) == sorted(bads)
    assert {(kind, logger) for kind, _, _, logger in asked} == {("Refused", "holdfast.processing")}
