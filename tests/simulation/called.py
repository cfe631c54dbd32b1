"""A workload for the simulation: functions of messages behind durable calls of a service that logs its calls.

The service gives each call another number as its answer. So an output shows which call its answer came from.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any

from greenlet import getcurrent  # type: ignore[import-untyped]

from holdfast.infra.kafka.records import Partition
from holdfast.processors.application.application import Application
from holdfast.processors.engine.changelog.format import META_KEY, decode_value
from holdfast.processors.testing.cluster import InMemoryCluster
from holdfast.processors.testing.log import Entry
from holdfast.processors.testing.transactions import Phase
from tests.simulation.verifier import Databases, FinalCheck, History, InvariantBroken, Seen
from tests.simulation.workload import GROUP, INPUT, OUTPUT, Expected, Message, Spoilt, Workload

#: The store of the answers.
ANSWERS = "answers"
#: The kind of a message that the service refuses.
REFUSED = "refused"

#: A message: its partition and its number.
Name = tuple[int, int]


class Service:
    """The external system.

    Attributes:
        log: All calls that got an answer, in order: the message and the answer.
        broken: Calls that were made although an answer of their message was committed.
        zombies: How many of these calls came from processes that had lost their partition and did not know it. No
            engine can prevent them.
        most: The largest number of calls without a committed answer that one owner of a partition had.
    """

    def __init__(self) -> None:
        self.log: list[tuple[Name, int]] = []
        self.broken: list[Name] = []
        self.zombies = 0
        self.most = 0
        self._cluster: InMemoryCluster | None = None
        self._history: History | None = None
        self._committed: dict[Name, set[int]] = {}
        self._read: Counter[int] = Counter()
        #: The answers that a process got for a partition and that were not committed at its last call.
        self._open: dict[tuple[Any, int], set[tuple[Name, int]]] = {}

    def watch(self, cluster: InMemoryCluster, history: History) -> None:
        """Set the cluster, and the committed records of its changelogs."""
        self._cluster, self._history = cluster, history

    async def __call__(self, value: dict[str, Any]) -> dict[str, Any]:
        name, caller = (value["p"], value["n"]), getcurrent()
        committed = self.committed()
        is_owner = self._is_owner(caller, value["p"])
        if name in committed and is_owner:
            self.broken.append(name)
        self.zombies += name in committed and not is_owner
        await asyncio.sleep(0)
        if value["spoil"] == REFUSED:
            raise Spoilt(REFUSED)
        answer = len(self.log) + 1
        self.log.append((name, answer))
        left = self._open.setdefault((caller, value["p"]), set())
        left -= {(of, number) for of, number in left if number in committed.get(of, ())}
        left.add((name, answer))
        self.most = max(self.most, len(left)) if is_owner else self.most
        return {**value, "a": answer}

    def committed(self) -> dict[Name, set[int]]:
        """The answers that were ever committed, by message."""
        assert self._history is not None
        self._history.observe()
        for number in range(self._partitions):
            records = self._history._records.get(self._history.partition(ANSWERS, number), {})
            for offset in [offset for offset in records if offset >= self._read[number]]:
                key, raw = records[offset]
                self._read[number] = max(self._read[number], offset + 1)
                self._note(key, raw)
            for entry in self._decided(number):
                self._note(entry.key, entry.value)
        return self._committed

    def _note(self, key: bytes | None, raw: bytes | None) -> None:
        if raw is not None and key != META_KEY:
            answer = decode_value(raw)["answer"]
            self._committed.setdefault((answer["p"], answer["n"]), set()).add(answer["a"])

    def _decided(self, partition: int) -> Iterator[Entry]:
        """The committed records that readers do not see yet, because a marker is missing here or before them."""
        assert self._cluster is not None
        assert self._history is not None
        broker = self._cluster._broker
        log = broker.topics[self._history.partition(ANSWERS, partition).topic].logs[partition]
        stable = log.last_stable
        yield from (entry for entry in reversed(log._entries[-100:]) if entry.offset >= stable and entry.readable)
        ending = {each.producer_id for each in broker.transactions._by_id.values() if each.phase is Phase.ENDING}
        committing = {each.producer_id for each in broker.transactions._by_id.values() if each.committed} & ending
        for producer in committing & log._open.keys():
            yield from log._open[producer]

    @property
    def repeated(self) -> int:
        """The number of answered calls beyond the first one of each message."""
        return len(self.log) - len({name for name, _ in self.log})

    @property
    def unanswered(self) -> int:
        """The number of calls whose answer was never committed."""
        committed = self.committed()
        return sum(answer not in committed.get(name, ()) for name, answer in self.log)

    @property
    def _partitions(self) -> int:
        assert self._cluster is not None
        return len(self._cluster._broker.topics[INPUT].logs)

    def _is_owner(self, caller: Any, partition: int) -> bool:
        """Whether the group's coordinator has given the partition to the process that runs now."""
        assert self._cluster is not None
        members = self._cluster._broker.groups[GROUP].members
        place = Partition(INPUT, partition)
        return any(getattr(each.process, "_greenlet", None) is caller and place in each.share for each in members)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledWorkload(Workload):
    """Functions of messages, behind durable calls. ``at_once`` is the number of calls at the same time."""

    service: Service = field(default_factory=Service, compare=False)
    at_once: int = 3
    order: str = "key"

    @property
    def all_names(self) -> tuple[str, ...]:
        return (*self.names, ANSWERS)

    @property
    def changelogged(self) -> tuple[str, ...]:
        return self.all_names

    def stores_of(self, topic: str) -> tuple[str, ...]:
        return self.names

    def begun(self, app: Application, name: str) -> Any:
        """The stream of an input, with the calls in front."""
        service = self.service

        async def ask(value: dict[str, Any]) -> dict[str, Any]:
            return await service(value)

        stream = app.dataframe(app.topic(name)).filter(lambda value: True)
        order: Any = self.order
        return stream.apply_async(ask, concurrency=self.at_once, order=order, durable=True, store=ANSWERS)


def called(workload: Workload, seed: int) -> CalledWorkload:
    """The same workload with durable calls. The service refuses some of the messages that no function refuses."""
    random = Random(f"calls of {seed}")

    def changed(message: Message) -> Message:
        return message._replace(spoils=REFUSED) if message.spoils is None and random.random() < share else message

    share = random.choice([0.0, 0.05])
    made = CalledWorkload(
        **{each.name: getattr(workload, each.name) for each in fields(workload)},
        at_once=random.choice([1, 3, 3, 8]),
        order=random.choice(["key", "none"]),
    )
    # Often few messages: with one call at a time, each of them has a commit.
    most = max(3, random.choice([30, 90, 240]) // len(made.messages))
    return replace(made, messages=tuple(tuple(map(changed, of[:most])) for of in made.messages))


class CalledCheck(FinalCheck):
    """The checks of functions, and of the calls in front of them."""

    def __init__(
        self, cluster: InMemoryCluster, workload: CalledWorkload, expected: Expected, history: History, seen: Seen
    ) -> None:
        super().__init__(cluster, workload, expected, history, seen)
        self._service, self._at_once = workload.service, workload.at_once

    def run(self, databases: Databases, excused: Set[int] = frozenset()) -> None:
        """Check outputs and state of functions, then the calls.

        Raises:
            InvariantBroken: A call with a committed answer was repeated, or an answer was used before its commit, or an
                answer is left in the store, or more calls than allowed had no committed answer.
        """
        super().run(databases, excused)
        service, committed = self._service, self._service.committed()
        if service.broken:
            raise InvariantBroken("calls", f"repeated with a committed answer: {service.broken[:5]}")
        if service.most > self._at_once:
            raise InvariantBroken("calls", f"{service.most} calls had no committed answer, at most {self._at_once} may")
        for _, record in self._seen.read(OUTPUT):
            value = json.loads(record.value or b"")
            if value["a"] not in committed.get((value["p"], value["n"]), ()):
                raise InvariantBroken("answers", f"answer {value['a']} of {value['p'], value['n']} was not committed")
        for partition in range(len(self._workload.messages)):
            place = self._history.partition(ANSWERS, partition)
            if left := self._history.fold(place, self._cluster.log_end(place)):
                raise InvariantBroken(
                    "answers", f"{len(left)} answers of partition {partition} are left: {list(left)[:3]}"
                )
