"""A topology as a value: lines of code that declare an application, its topics, and its input messages.

The printed code is the code that runs: ``build`` executes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any, Literal

from holdfast import Application
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.topology import SourceLog
from holdfast.processors.testing.cluster import InMemoryCluster
from tests.simulation.workload import GROUP

#: How the records of an output topic are compared. ``order``: the records of each key in order; ``each``: all records
#: in any order; ``last``: only the last record of each key.
Compared = Literal["order", "each", "last"]

IMPORTS = """\
from datetime import timedelta

from holdfast import Application, Collect, Count, Last, Max, Mean, Min, Sum
from holdfast.dataframe.windows import Earliest, First, Latest, Reduce
from tests.combinations.functions import *
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the declaration.

    Attributes:
        step: The name of its step in the grammar.
        code: The code, with placeholders ``{0}``, ``{1}`` for the names in ``of``.
        of: The names of the streams, tables or topics that it uses.
        name: The name of the stream, table or topic that it makes; empty for an output.
        sends: The output topic, if it is an output.
        compared: How the records of the output topic are compared.
        stores: The stores whose content is the same under each schedule.
    """

    step: str
    code: str
    of: tuple[str, ...] = ()
    name: str = ""
    sends: str = ""
    compared: Compared = "order"
    stores: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The line as code that can run."""
        made = self.code.format(*self.of)
        return f"{self.name} = {made}" if self.name else made


@dataclass(frozen=True, slots=True)
class Message:
    """One record of an input topic; ``at`` is its time, in milliseconds after the start of the input."""

    topic: str
    at: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def has_outer_rows(lines: Iterable[Line]) -> bool:
    """Whether an interval join sends rows without a match when their time is over."""
    return any(line.step == "join_interval" and "'inner'" not in line.code for line in lines)


@dataclass(frozen=True, slots=True)
class Topology:
    """A topology: lines of code, partitions of input topics, messages in the order of production, and settings.

    Attributes:
        rules: Properties of the topology, such as ``grouped``. They decide what may differ between its schedules: for
            instance, when input arrives, and the number of partitions.
    """

    lines: tuple[Line, ...]
    partitions: Mapping[str, int]
    messages: tuple[Message, ...]
    settings: Mapping[str, Any]
    rules: frozenset[str] = frozenset()

    @property
    def outputs(self) -> dict[str, Compared]:
        """How each output topic is compared."""
        return {line.sends: line.compared for line in self.lines if line.sends}

    @property
    def stores(self) -> list[str]:
        """The stores whose content is the same under each schedule."""
        return [store for line in self.lines for store in line.stores]

    @property
    def steps(self) -> list[str]:
        """The names of the steps in this topology."""
        return [line.step for line in self.lines]

    @property
    def closes_when_idle(self) -> bool:
        """Whether windows close when their inputs are silent."""
        return any("close_when_idle" in line.code for line in self.lines)

    def code(self) -> str:
        """The code of the declaration; it reads the variable ``settings``."""
        return "\n".join(["app = Application(**settings)", *(line.text for line in self.lines)]) + "\n"

    def script(self) -> str:
        """A program for people, which runs the topology on the cluster in memory and prints the outputs."""
        topics = [f"cluster.create_topic({name!r}, {count})" for name, count in self.partitions.items()]
        messages = [
            f"    ({each.topic!r}, {each.at}, {each.key!r}, {each.value!r}, {list(each.headers)!r}),"
            for each in self.messages
        ]
        return "\n".join(
            [
                IMPORTS + "from holdfast import InMemoryCluster\n",
                f"settings = {dict(self.settings, consumer_group='totals', auto_offset_reset='earliest')!r}",
                self.code(),
                "cluster = InMemoryCluster()",
                *topics,
                "first = int(cluster.clock.time() * 1000) - 3_600_000",
                "messages = [",
                *messages,
                "]",
                "for topic, at, key, value, headers in messages:",
                "    cluster.produce(topic, value, key, timestamp_ms=first + at, headers=headers)",
                "cluster.run(app)",
                f"for topic in {sorted(self.outputs)!r}:",
                "    print(topic, *[(record.key, record.value) for _, record in cluster.read(topic)], sep='\\n  ')",
            ]
        )

    def without(self, names: Collection[str], outputs: Collection[str] = ()) -> Topology:
        """The topology without the lines that make these names or send to these outputs.

        Lines that use a removed name are removed, too.
        """
        gone, left = set(names), list[Line]()
        for line in self.lines:
            if line.name in gone or line.sends in outputs or gone.intersection(line.of):
                gone.update({line.name} - {""})
            else:
                left.append(line)
        return replace(self, lines=tuple(left)).pruned()

    def pruned(self) -> Topology:
        """The topology without topics that no line uses, and without their messages."""
        used = {name for line in self.lines for name in line.of}
        topics = [line.name for line in self.lines if line.step == "topic"]
        gone = {name for name in topics if name not in used}
        lines = tuple(line for line in self.lines if line.name not in gone)
        return replace(
            self,
            lines=lines,
            partitions={name: count for name, count in self.partitions.items() if name not in gone},
            messages=tuple(each for each in self.messages if each.topic not in gone),
        )

    def build(self, **settings: Any) -> Application:
        """Builds the application."""
        return built(self.code(), {**self.settings, **settings})

    def described(self) -> Described:
        """The engine's own description of the application: its inputs, stores and tasks."""
        return _described(self.code(), tuple(sorted(self.settings.items())))

    def create_topics(self, cluster: InMemoryCluster) -> None:
        """Creates the input and output topics."""
        for name, count in self.partitions.items():
            cluster.create_topic(name, count, {"cleanup.policy": "compact"} if name.startswith("r") else {})
        for name in self.outputs:
            cluster.create_topic(name, 2)


@dataclass(frozen=True, slots=True)
class Described:
    """The inputs, repartition topics, stores and tasks of an application, and each store's changelog or topic."""

    inputs: frozenset[str]
    repartitions: tuple[str, ...]
    changelogs: Mapping[str, str]
    logs: Mapping[str, SourceLog]
    #: The topics of each kind of task.
    tasks: tuple[frozenset[str], ...]


@lru_cache(maxsize=64)
def _described(code: str, settings: tuple[tuple[str, Any], ...]) -> Described:
    made = built(code, {**dict(settings), "consumer_group": GROUP, "auto_offset_reset": "earliest"}).topology()
    logs = {spec.name: log for spec in made.stores if (log := made.source_log_of(spec.name)) is not None}
    return Described(
        frozenset(spec.name for spec in made.inputs),
        tuple(spec.topic for spec in made.repartitions),
        {spec.name: changelog_topic(GROUP, spec.name) for spec in made.stores if spec.name not in logs},
        logs,
        tuple(frozenset(each.inputs) for each in made.subtopologies),
    )


@lru_cache(maxsize=256)
def _compiled(code: str) -> CodeType:
    return compile(code, "<topology>", "exec")


@lru_cache(maxsize=1)
def _names() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(IMPORTS, names)
    return names


def built(code: str, settings: Mapping[str, Any]) -> Application:
    """The application that a declaration, given as code, makes."""
    names = {**_names(), "settings": dict(settings)}
    exec(_compiled(code), names)
    made = names["app"]
    assert isinstance(made, Application)
    return made
