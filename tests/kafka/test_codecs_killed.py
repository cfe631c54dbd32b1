"""A processor with stores of each codec is killed and loses its disks, on a real broker. One store changes its codec.

Outputs and changelogs are compared with results that plain Python computes from the records in the source topic.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.processors.engine.changelog.format import META_KEY
from tests.kafka.killed import BEGIN_MS, Kill, Scenario

KEYS = 25


def collect(value: Any, state: Any) -> Any:
    """Keeps a set and an exact total, as a tuple."""
    seen, total = state.get("kept", (set(), Decimal(0)))
    kept = (seen | {value["n"] % 7}, total + Decimal(value["n"]) / 8)
    state.set("kept", kept)
    return {**value, "seen": sorted(kept[0]), "total": str(kept[1])}


def sign(value: Any, state: Any) -> Any:
    """Keeps a dict whose keys are integers and whose values are bytes."""
    known = state.get("known", {})
    known[value["n"] % 3] = known.get(value["n"] % 3, b"") + bytes([value["n"] % 256])
    state.set("known", known)
    return {**value, "known": {str(name): raw.hex() for name, raw in sorted(known.items())}}


def store_raw(value: Any, state: Any) -> Any:
    """Keeps a value of raw bytes."""
    raw = state.get("raw", b"") + b"x"
    state.set("raw", raw)
    return {**value, "raw": len(raw)}


def list_last(value: Any, state: Any) -> Any:
    """Keeps a list of integers, which every codec can store."""
    return {**value, "last": state.append("last", value["n"], keep_last=4)}


class Memory:
    """The state of one key in one store, as a model in plain Python."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def get(self, key: str, default: Any) -> Any:
        return self.held.get(key, default)

    def set(self, key: str, value: Any) -> None:
        self.held[key] = value

    def append(self, key: str, item: Any, keep_last: int) -> list[Any]:
        self.held[key] = [*self.held.get(key, []), item][-keep_last:]
        return list(self.held[key])


FUNCTIONS = {"typed": collect, "packed": sign, "raw": store_raw, "changing": list_last}


class Coded(Scenario):
    head = "from decimal import Decimal\nfrom typing import Any\n\n\n" + "\n\n".join(
        map(inspect.getsource, FUNCTIONS.values())
    )
    topology = """
        stream = made.dataframe(made.topic(group + "-in"))
        stream = stream.apply(collect, stateful=True, store=made.store("typed", codec="typed"))
        stream = stream.apply(sign, stateful=True, store=made.store("packed", codec="msgpack"))
        stream = stream.apply(store_raw, stateful=True, store=made.store("raw", codec="bytes"))
        stream = stream.apply(list_last, stateful=True, store=made.store("changing", codec="json"))
        stream.to_topic(made.topic(group + "-out"))
        """
    #: The codecs of the store "changing", in this order.
    codecs = ("json", "typed", "msgpack")

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        fed = 0
        for was, now in zip(self.codecs, self.codecs[1:], strict=False):
            fed = self.feed(fed)
            # The next worker uses the store "changing" with the next codec, and has an empty disk. So it restores
            # records that were written with all codecs so far.
            yield Kill(
                self.has_more_committed(),
                "some messages to be committed",
                loses_disk=True,
                meanwhile=self.turn(was, now),
            )
            self.wait(self.has_committed(fed), "the messages to be committed")
        fed = self.feed(fed)
        yield Kill(self.has_more_committed(), "some messages to be committed")
        self.wait(self.has_committed(fed), "everything to be committed")

    def turn(self, was: str, now: str) -> Callable[[], None]:
        file = self.killed.paths.home / "counting_definition.py"

        def change() -> None:
            text = file.read_text()
            assert f'"changing", codec="{was}"' in text
            file.write_text(text.replace(f'"changing", codec="{was}"', f'"changing", codec="{now}"'))

        return change

    def feed(self, before: int) -> int:
        producer = Producer({"bootstrap.servers": self.stream.bootstrap, "partitioner": "murmur2_random"})
        for number in range(before, before + 1_500):
            key, value = f"k{self.drawn.randrange(KEYS)}", json.dumps({"n": number}).encode()
            producer.produce(self.stream.source, value, key.encode(), timestamp=BEGIN_MS + number)
        assert producer.flush(60) == 0
        return before + 1_500

    def modelled(self) -> tuple[dict[tuple[str, bytes], Memory], list[Any]]:
        """The expected content of each store for each key, and the expected outputs."""
        held: dict[tuple[str, bytes], Memory] = {}
        sent = []
        for records in self.partitions():
            for each in records:
                value = json.loads(each.value or b"")
                for store, function in FUNCTIONS.items():
                    value = function(value, held.setdefault((store, each.key or b""), Memory()))
                sent.append(value)
        return held, sent

    def truth(self) -> dict[str, Counter[Any]]:
        return {"out": Counter(json.dumps(each) for each in self.modelled()[1])}

    def sent(self, output: str) -> Counter[Any]:
        return self.documents(output, lambda record, each: json.dumps(each))

    def check_ended(self) -> None:
        held, _ = self.modelled()
        for store in FUNCTIONS:
            wanted = {
                (key, name): value
                for (of, key), each in held.items()
                if of == store
                for name, value in each.held.items()
            }
            assert self.stored(store) == wanted
            records = self.stream.read(self.topic(f"{store}-changelog"))
            metas = [json.loads(each.value or b"") for each in records if each.key == META_KEY]
            codecs = {each.value[1] for each in records if each.key != META_KEY and each.value is not None}
            said = {"typed": "typed 1", "packed": "msgpack 1", "raw": "bytes 1", "changing": "msgpack 1"}
            assert metas[-1]["codec"] == said[store]
            assert codecs == {"typed": {4}, "packed": {3}, "raw": {2}, "changing": {1, 3, 4}}[store]


@pytest.mark.thorough
def test_kill_9_neither_loses_nor_doubles_a_value_of_any_codec(stream: Any, worker: Callable[..., Any]) -> None:
    Coded(stream, worker).live()
