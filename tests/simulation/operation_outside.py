"""Systems outside of the processor in a course: a service that durable calls ask, and systems that sinks write to.

The sinks are production code on a real database of SQLite, on real files, and on an HTTP client without a network.
Before and after each of their accesses, the worker passes a point, where it may be killed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from sqlite3 import connect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
from greenlet import getcurrent  # type: ignore[import-untyped]

from holdfast.infra.kafka.records import Partition
from holdfast.processors.application.application import Application
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.sinks.sink import SinkItem
from holdfast.processors.engine.state.own_keys import SINKS
from holdfast.sinks import HttpSink, JsonLinesSink, SqlSink
from tests.simulation.called import ANSWERS, CalledWorkload, Name, Service, called
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP, OUTPUT, Workload

if TYPE_CHECKING:
    from tests.simulation.operation_world import OperationWorld

#: What a course may have outside: durable calls, a table, files, and a server.
PARTS = ("calls", "table", "files", "server")
#: The name of the sink of files.
LAKE = "lake"
#: Answers by partition and changelog key: the message and the answer.
Stored = dict[tuple[int, bytes], tuple[Name, int]]
#: A result of the last step, as JSON text.
Result = str


def parts_of(seed: int) -> frozenset[str]:
    """What the course of a seed has outside. Most courses have nothing."""
    if seed % 8 != 6:
        return frozenset()
    random = Random(f"outside of course {seed}")
    return frozenset(random.sample(PARTS, random.choice([1, 2, 2, 4])))


class CourseService(Service):
    """A service whose answers may be deleted, because courses clear and erase keys."""

    def __init__(self, world: OperationWorld) -> None:
        super().__init__()
        self._world = world
        self._broker = world.cluster._broker
        self._cluster = world.cluster
        self._topic = changelog_topic(GROUP, ANSWERS)
        places: Any = SimpleNamespace(partition=lambda store, number: Partition(self._topic, number))
        self._history = places  # the base class reads the name of the changelog from it
        self._id = ""
        self._next: dict[int, int] = {}
        #: The answers that are stored now, as far as their markers are written.
        self._stored: Stored = {}
        #: The messages whose calls were repeated by their owner, although an answer was stored.
        self.repeats: list[Name] = []
        for of, name in ((world.cluster, "compact"), (self._broker, "delete")):
            self._look_before(of, name)

    def _look_before(self, of: Any, name: str) -> None:
        """Reads the answers before each call of a method that removes records."""
        original = getattr(of, name)

        def call(*given: Any, **named: Any) -> Any:
            self.committed()
            return original(*given, **named)

        setattr(of, name, call)

    async def __call__(self, value: dict[str, Any]) -> dict[str, Any]:
        name = value["p"], value["n"]
        if name in self.stored() and self._is_owner(getcurrent(), value["p"]):
            self.repeats.append(name)
        return await super().__call__(value)

    def stored(self) -> dict[Name, int]:
        """The answers that are stored now."""
        self.committed()
        found = dict(self._stored)
        for number in range(self._partitions if self._id else 0):
            for each in self._decided(number):
                self._read_one(found, number, each.key, each.value)
        return dict(found.values())

    def committed(self) -> dict[Name, set[int]]:
        """The answers that were ever committed, by message."""
        topic = self._broker.topics.get(self._topic)
        if topic is None:
            self._id, self._stored, self._next = "", {}, {}
            return self._committed
        if topic.topic_id != self._id:
            self._id, self._stored, self._next = topic.topic_id, {}, {}
        for number, log in enumerate(topic.logs):
            if self._next.get(number, 0) < log.end:
                entries, self._next[number] = log.read(self._next.get(number, 0), log.end, committed=True)
                for each in entries:
                    self._read_one(self._stored, number, each.key, each.value)
        for number in range(self._partitions):
            for each in self._decided(number):
                self._read_one({}, number, each.key, each.value)
        return self._committed

    def _read_one(self, stored: Stored, number: int, key: bytes | None, raw: bytes | None) -> None:
        if key is None or key == META_KEY:
            return
        if raw is None:
            stored.pop((number, key), None)
            return
        answer = decode_value(raw)["answer"]
        name = answer["p"], answer["n"]
        stored[number, key] = name, answer["a"]
        self._committed.setdefault(name, set()).add(answer["a"])


class _Reached:
    """Wraps an object. The present process passes a point before and after each call of a method."""

    def __init__(self, of: Any, world: OperationWorld, name: str) -> None:
        self._of, self._world, self._name = of, world, name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._of, attribute)

        def call(*given: Any, **named: Any) -> Any:
            with passed(self._world, f"{self._name}:{attribute}"):
                return value(*given, **named)

        return call if callable(value) else value


@contextmanager
def passed(world: OperationWorld, name: str) -> Iterator[None]:
    """A context between two points of the present process: the places before and after an access."""
    world.current().point(f"{name}:before")
    yield
    world.current().point(f"{name}:after")


class Table:
    """The table of a ``SqlSink``, and what its readers see."""

    def __init__(self, world: OperationWorld, file: Path) -> None:
        self._world, self._file = world, file
        self._offsets: dict[str, int] = {}
        self._sinks = 0

    def sink(self) -> SqlSink:
        """A sink in a new process of a worker."""
        # Another connection that writes keeps the lock over a point. Then the database is busy at once, not after 5 s.
        made = SqlSink(f"sqlite:///{self._file}?timeout=0", "totals", key="id", create=True, row=row_of)
        self._sinks += 1
        made.owner = f"sink {self._sinks}"
        begin = made._table.begin

        @contextmanager
        def begins() -> Iterator[Any]:
            with passed(self._world, "table:write"):
                with begin() as connection:
                    yield connection
                    self._world.current().point("table:commit:before")
                self._look()

        made._table.begin = begins  # type: ignore[method-assign]
        return made

    def rows(self) -> dict[str, tuple[int, Any, int]]:
        """The number of the message, the total and the offset of each row."""
        with closing(connect(self._file)) as base:
            # A table that was created for deleted rows has only their keys.
            if "n" not in {name for _, name, *_ in base.execute("PRAGMA table_info(totals)")}:
                return {}
            found = base.execute("SELECT id, n, total, _offset FROM totals").fetchall()
            return {row: (number, total, at) for row, number, total, at in found}

    def _look(self) -> None:
        offsets = {row: at for row, (_, _, at) in self.rows().items()}
        back = {row: (self._offsets[row], at) for row, at in offsets.items() if at < self._offsets.get(row, 0)}
        if back and self._world.broken is None:
            self._world.broken = InvariantBroken("table", f"rows went back, as (from, to): {back}")
        self._offsets = offsets


def row_id(partition: int, key: str) -> str:
    """The key of a row. In partition 0, it is the message key."""
    return key if partition == 0 else f"{key}-{partition}"


def row_of(item: SinkItem) -> Mapping[str, Any] | None:
    """The row of a result. In partition 0, a deleted total deletes the row."""
    value = item.value
    if value["p"] == 0 and value["drop"]:
        return None
    return {"id": row_id(value["p"], item.key.decode()), "n": value["n"], "total": text_of(value["first"])}


class Server:
    """The server of an ``HttpSink``: it stores each idempotency key once."""

    def __init__(self, world: OperationWorld) -> None:
        self._world = world
        self.stored: dict[str, Result] = {}

    def sink(self) -> HttpSink:
        """A sink in a new process of a worker."""
        made, server = HttpSink("http://server/totals"), self

        def setup() -> None:
            made._client = httpx.Client(transport=httpx.MockTransport(server.take))

        made.setup = setup  # type: ignore[method-assign]
        return made

    def take(self, request: httpx.Request) -> httpx.Response:
        """Store a result, unless its key is known."""
        with passed(self._world, "request"):
            key = request.headers["Idempotency-Key"]
            status = 409 if key in self.stored else 201
            self.stored.setdefault(key, text_of(json.loads(request.content)))
        return httpx.Response(status)


class Files:
    """The folder of a ``JsonLinesSink``."""

    def __init__(self, world: OperationWorld, folder: Path) -> None:
        self._world, self._folder = world, folder

    def sink(self) -> JsonLinesSink:
        """A sink in a new process of a worker."""
        made = JsonLinesSink(str(self._folder), name=LAKE, metadata=False)
        made._files = _Reached(made._files, self._world, "files")  # type: ignore[assignment]
        return made

    def shown(self) -> list[Result]:
        """The rows that readers see."""
        return [row for file in sorted(self._folder.glob("*.jsonl")) for row in _rows(file)]

    def waiting(self) -> list[Result]:
        """The rows that are committed and not published yet: the committed state has the names of their files."""
        topic, lists = changelog_topic(GROUP, f"sink-{LAKE}"), dict[int, list[Any]]()
        for number, record in self._world.cluster.read(topic) if topic in self._world.cluster._broker.topics else ():
            if record.key is not None and record.key != META_KEY and split_key(record.key)[1] == SINKS + LAKE:
                lists[number] = [] if record.value is None else decode_value(record.value)["staged"]
        found = []
        for number, parts in lists.items():
            label = f"{GROUP}-{LAKE}-{number}"
            marker = self._folder / "_published" / f"{label}.json"
            last = json.loads(marker.read_text())["sequence"] if marker.exists() else 0
            for name in (name for sequence, names in parts if sequence > last for name in names):
                staged = self._folder / "_staged" / label / name
                found += _rows(staged) if staged.exists() else []
        return found


def _rows(file: Path) -> list[Result]:
    return [text_of(json.loads(line)) for line in file.read_text().splitlines()]


def text_of(value: Any) -> Result:
    """A value as text that is equal for equal values."""
    return json.dumps(value, sort_keys=True)


class Outside:
    """The systems outside of the processor of one course."""

    def __init__(self, world: OperationWorld, folder: Path, parts: frozenset[str]) -> None:
        self._world, self.parts = world, parts
        self.service = CourseService(world)
        self.table, self.files = Table(world, folder / "rows.db"), Files(world, folder / "lake")
        self.server = Server(world)

    def sinks(self) -> list[Any]:
        """The sinks of a new process of a worker."""
        made: dict[str, Callable[[], Any]] = {
            "table": self.table.sink,
            "files": self.files.sink,
            "server": self.server.sink,
        }
        return [make() for part, make in made.items() if part in self.parts]

    def check(self, *, repeats: bool, consumed: bool) -> None:
        """Check what docs promise of durable calls and sinks.

        Args:
            repeats: Whether a clear or an erasure may have changed results that were sent again.
            consumed: Whether all input is processed and committed.

        Raises:
            InvariantBroken: A promise is broken.
        """
        results = self._results()
        if "calls" in self.parts:
            self._check_calls(results, repeats=repeats, consumed=consumed)
        if "files" in self.parts:
            shown, wanted = Counter([*self.files.shown(), *self.files.waiting()]), Counter(results)
            self._compare("files", shown, wanted)
        if "server" in self.parts:
            stored = Counter(self.server.stored.values())
            if repeats or not consumed:
                stored = Counter({row: min(count, stored[row]) for row, count in Counter(results).items()})
            self._compare("server", stored, Counter(dict.fromkeys(results, 1)) if repeats else Counter(results))
        if "table" in self.parts and consumed:
            self._check_table(results)

    def _results(self) -> list[Result]:
        """All committed results of the last step."""
        last = self._world.workload.names[-1].encode()
        records = self._world.cluster.read(OUTPUT)
        return [text_of(json.loads(each.value or b"")) for _, each in records if each.key == last]

    @staticmethod
    def _compare(what: str, seen: Counter[Result], wanted: Counter[Result]) -> None:
        if seen != wanted:
            lost, more = list((wanted - seen).elements())[:2], list((seen - wanted).elements())[:2]
            raise InvariantBroken(what, f"missing: {lost}; more than committed: {more}")

    def _check_calls(self, results: list[Result], *, repeats: bool, consumed: bool) -> None:
        service, committed = self.service, self.service.committed()
        if service.repeats:
            raise InvariantBroken("calls", f"repeated although their answers were stored: {service.repeats[:5]}")
        workload: Any = self._world.workload
        at_once = workload.at_once
        if service.most > at_once:
            raise InvariantBroken("calls", f"{service.most} calls had no committed answer, at most {at_once} may")
        for value in map(json.loads, results):
            if value["a"] not in committed.get((value["p"], value["n"]), ()):
                raise InvariantBroken("calls", f"answer {value['a']} of {value['p'], value['n']} was not committed")
        if consumed and not repeats and (left := service.stored()):
            raise InvariantBroken("calls", f"answers are left: {dict(list(left.items())[:3])}")

    def _check_table(self, results: list[Result]) -> None:
        """Check that each row has a committed result of the newest message of its key."""
        newest: dict[str, tuple[int, list[Any]]] = {}
        for value in map(json.loads, results):
            key = self._world.workload.messages[value["p"]][value["n"]].key.decode()
            row, gone = row_id(value["p"], key), value["p"] == 0 and value["drop"]
            number, totals = newest.get(row, (-1, []))
            if value["n"] > number:
                newest[row] = value["n"], ["gone" if gone else text_of(value["first"])]
            elif value["n"] == number:
                totals.append("gone" if gone else text_of(value["first"]))
        rows = self.table.rows()
        for row, (number, totals) in newest.items():
            seen = rows.get(row)
            if (seen is None and "gone" not in totals) or (seen and (seen[0] != number or seen[1] not in totals)):
                raise InvariantBroken("table", f"row {row} is {seen}; message {number} of its key gave {totals}")
        if unknown := rows.keys() - newest.keys():
            raise InvariantBroken("table", f"rows of no result: {sorted(unknown)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideWorkload(CalledWorkload):
    """The functions of a course, with durable calls before them and sinks behind them."""

    outside: Outside

    @property
    def all_names(self) -> tuple[str, ...]:
        return (*self.names, ANSWERS) if "calls" in self.outside.parts else self.names

    def begun(self, app: Application, name: str) -> Any:
        """The stream of an input, with the calls in front."""
        begun = CalledWorkload.begun if "calls" in self.outside.parts else Workload.begun
        return begun(self, app, name)

    def ended(self, frame: Any) -> None:
        """Add the sinks."""
        for sink in self.outside.sinks():
            frame.sink(sink)


def outside_workload(drawn: Workload, seed: int, outside: Outside) -> OutsideWorkload:
    """The workload of a course that has systems outside."""
    made = called(drawn, seed)
    given = {each.name: getattr(made, each.name) for each in fields(made)} | {"service": outside.service}
    if "calls" not in outside.parts:
        given["messages"] = drawn.messages
    return OutsideWorkload(**given, outside=outside)
