"""Compares the result of a run with that of its reference: committed outputs, and the content of stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.testing.cluster import InMemoryCluster
from tests.combinations.schedules import Schedule
from tests.combinations.topology import Compared, Described, Topology
from tests.simulation.workload import GROUP

DEAD = "dead"
#: Key and name prefix of the engine's own records in a store.
_OWN_KEY, _OWN_NAMES = b"\x00holdfast", "__holdfast"

#: Name prefix of a key's open windows that do not fit into the key's record; small batches (``Schedule.small``) lower
#: the limit.
_OPEN_WINDOWS = "o/"
#: Fields of a key's record that say where its windows are stored.
_PLACES = ("open", "more", "closed")

#: An output record: value, timestamp and headers.
Sent = tuple[bytes | None, int, tuple[tuple[str, bytes | None], ...]]


class Wrong(Exception):
    """Raised if a run has a wrong result, or no result in time."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run: the records sent, by output topic and key, and the content of each store."""

    outputs: Mapping[str, Mapping[bytes | None, list[Sent]]]
    compared: Mapping[str, Compared]
    stores: Mapping[str, Mapping[tuple[bytes, str], Any]]

    def differs(self, other: Result, schedule: Schedule) -> Wrong | None:
        """How the other result differs from this one; None if there is no forbidden difference.

        At-least-once allows repeated records. How the order of records matters depends on the output topic.
        """
        for topic, by_key in self.outputs.items():
            there = other.outputs[topic]
            for key in by_key.keys() | there.keys():
                wrong = _difference(by_key.get(key, []), there.get(key, []), self.compared[topic], schedule)
                if wrong is not None:
                    return Wrong("outputs", f"{topic}, key {key!r} ({self.compared[topic]}): {wrong}")
        for store, content in self.stores.items():
            there_held = other.stores[store]
            for place in sorted(content.keys() | there_held.keys()):
                right, seen = content.get(place), there_held.get(place)
                if repr(right) != repr(seen):
                    return Wrong("state", f"store {store}, {place}: {seen!r}, the reference has {right!r}")
        return None

    @property
    def size(self) -> int:
        """The number of records sent."""
        return sum(len(sent) for by_key in self.outputs.values() for sent in by_key.values())


def _difference(right: list[Sent], seen: list[Sent], compared: Compared, schedule: Schedule) -> str | None:
    if compared == "last":  # the timestamp depends on which message came last, so it is not compared
        right, seen = _last(right), _last(seen)
    if not schedule.exactly_once:
        missing, new = set(right) - set(seen), set(seen) - set(right)
        return f"missing {_few(missing)}, new {_few(new)}" if missing or new else None
    if compared == "order" and right != seen and sorted(map(repr, right)) == sorted(map(repr, seen)):
        place = next(index for index, pair in enumerate(zip(right, seen, strict=True)) if pair[0] != pair[1])
        return f"another order from {place} on: {seen[place : place + 2]}, the reference has {right[place : place + 2]}"
    rights, seens = Counter(right), Counter(seen)
    if rights != seens:
        differs = f"missing {_few(rights - seens)}, new {_few(seens - rights)}"
        return f"{len(seen)} records, {len(right)} in the reference; {differs}"
    return None


def _last(sent: list[Sent]) -> list[Sent]:
    """The last value without its timestamp. Empty if it is a deletion: a run may lack a short-lived row altogether."""
    return [(each[0], 0, ()) for each in sent[-1:] if each[0] is not None]


def _few(records: Any) -> str:
    shown = sorted(map(str, records))[:2]
    return f"{len(list(records))} {shown}"


def result_of(cluster: InMemoryCluster, topology: Topology) -> Result:
    """Reads the result of a run from the cluster."""
    compared: dict[str, Compared] = dict(topology.outputs)
    if topology.settings.get("dead_letter_topic"):
        compared[DEAD] = "each"
    outputs = {name: _sent(cluster, name) for name in compared}
    described = topology.described()
    stores = {
        name: {
            place: _kept(place[1], value)
            for place, value in held(cluster, name, described).items()
            if place[0] != _OWN_KEY and not place[1].startswith((_OWN_NAMES, _OPEN_WINDOWS))
        }
        for name in topology.stores
    }
    return Result(outputs, compared, stores)


def _kept(name: str, value: Any) -> Any:
    """A stored value without fields that depend on commits or batch sizes: they only say how open windows are found."""
    if name == "time" and isinstance(value, dict):
        return {field: of for field, of in value.items() if field not in _PLACES}
    if isinstance(value, dict) and isinstance(value.get("session"), dict):
        return {**value, "session": {field: of for field, of in value["session"].items() if field != "entered"}}
    return value


def held(cluster: InMemoryCluster, store: str, described: Described) -> dict[tuple[bytes, str], Any]:
    """The content of a store, from its committed changelog or from the processed records of its topic."""
    if store in described.logs:
        return cluster._rows(GROUP, described.logs[store])
    newest: dict[bytes, bytes | None] = {}
    changelog = described.changelogs[store]
    for _, record in cluster.read(changelog) if changelog in cluster._broker.topics else []:
        if record.key is not None and record.key != META_KEY:
            newest[record.key] = record.value
    return {split_key(key): decode_value(raw) for key, raw in newest.items() if raw is not None}


def _sent(cluster: InMemoryCluster, topic: str) -> dict[bytes | None, list[Sent]]:
    found: dict[bytes | None, list[Sent]] = {}
    for _, record in cluster.read(topic) if topic in cluster._broker.topics else []:
        if topic == DEAD:
            sent: Sent = (record.value, 0, ())
        else:
            sent = (record.value, record.timestamp_ms, tuple((name, raw) for name, raw in record.headers or ()))
        found.setdefault(record.key, []).append(sent)
    return found
