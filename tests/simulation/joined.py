"""A workload for the simulation: two topics are joined by their keys, without ``group_by``.

A task reads both topics in the order of event times. Its joins therefore get the messages in that order, however often
the task restarts. One more step counts the left messages.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.processors.application.application import Application
from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.testing.cluster import InMemoryCluster
from tests.simulation.grouped import GRACE_MS, TOTALS, GroupedMessage, checked, count, draw_messages
from tests.simulation.grouped_joins import PARTITIONS_MAX, JoinsCheck, Sent, add_joins
from tests.simulation.schedule import Schedule
from tests.simulation.verifier import Expected, FinalCheck, History, Seen
from tests.simulation.workload import INPUT, OUTPUT, SECOND, Spoilt, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedWorkload(Workload):
    """All messages by partition, in order.

    Messages with an even number belong to the left topic, the others to the right topic.
    """

    inputs: tuple[str, ...] = (INPUT, SECOND)

    def topic_of(self, message: Any) -> str:
        """The input topic of a message."""
        return self.inputs[message.number % 2]

    @property
    def names(self) -> tuple[str, ...]:
        return (TOTALS,)

    def application(self, *, joined: bool = False, **settings: Any) -> Application:
        """The processor, which has only one version in this workload."""
        app = self.without_steps(lambda error, *_: isinstance(error, Spoilt), settings)
        output = app.topic(OUTPUT)
        left, right = (app.dataframe(app.topic(name)).apply(checked) for name in self.inputs)
        left.apply(count, stateful=True, store=TOTALS).to_topic(output)
        add_joins(left, right, output, GRACE_MS)
        return app


def joined_workload(schedule: Schedule) -> JoinedWorkload:
    """Messages of a few keys in each partition of two topics."""
    messages, at_first, rest_at = draw_messages(Random(f"joined of {schedule.seed}"), schedule)
    return JoinedWorkload(
        messages,
        stores=0,
        exactly_once=schedule.exactly_once,
        dead_letters=schedule.dead_letters,
        at_first=at_first,
        rest_at=rest_at,
    )


@dataclass(slots=True)
class JoinedExpected(Expected):
    """The expected result if each message counts once. ``sent`` has the messages of both sides, by partition."""

    sent: list[list[Sent]] = field(default_factory=list)


def expect_joined(workload: JoinedWorkload) -> JoinedExpected:
    """Computes the expected result from the input, in plain Python."""
    expected = JoinedExpected()
    for partition, messages in enumerate(workload.messages):
        totals: dict[bytes, list[int]] = {}
        expected.sent.append([])
        for message in messages:
            assert isinstance(message, GroupedMessage)
            if message.spoils:
                expected.dead.add((partition, message.number))
                continue
            expected.sent[-1].append(Sent(partition, message.number, message.at, message.key.decode()))
            if expected.sent[-1][-1].left:
                total = totals.setdefault(message.key, [0, 0])
                total[0], total[1] = total[0] + 1, total[1] + message.amount
        expected.states[(TOTALS, partition)] = {key_prefix(key) + b"total": total for key, total in totals.items()}
    return expected


class JoinedCheck(FinalCheck):
    """Checks the final state, after the whole input is processed and each due outer row is sent."""

    _expected: JoinedExpected

    def __init__(self, cluster: InMemoryCluster, workload: JoinedWorkload, history: History, seen: Seen) -> None:
        super().__init__(cluster, workload, expect_joined(workload), history, seen)
        self._joins = [JoinsCheck(sent, GRACE_MS, GRACE_MS) for sent in self._expected.sent]
        self._looked_at: object = None
        self._settled = False

    def settled(self) -> bool:
        """Whether each left message is counted and each row of the joins is sent."""
        if (extent := self._seen.extent(OUTPUT)) != self._looked_at:
            self._looked_at = extent
            counted, rows = self._sent()
            joined = zip(self._joins, rows, strict=True)
            self._settled = counted.keys() >= self._lefts() and all(joins.complete(of) for joins, of in joined)
        return self._settled

    def check_outputs(self) -> None:
        """Checks that each left message counts once, and that all rows of the joins are right."""
        counted, rows = self._sent()
        self._count("outputs", counted, dict.fromkeys(self._lefts()))
        for joins, of in zip(self._joins, rows, strict=True):
            joins.check(of, once=self._workload.exactly_once and not self._seen.cleared)

    def _lefts(self) -> set[tuple[int, int]]:
        return {each.name for sent in self._expected.sent for each in sent if each.left}

    def _sent(self) -> tuple[Counter[tuple[int, int]], list[list[dict[str, Any]]]]:
        """Read the counted left messages, and the rows of joins by input partition, from the output."""
        counted: Counter[tuple[int, int]] = Counter()
        rows: list[list[dict[str, Any]]] = [[] for _ in self._expected.sent]
        for _, record in self._seen.read(OUTPUT):
            value = json.loads(record.value or b"null")
            if value["of"] == TOTALS:
                counted[value["p"], value["n"]] += 1
            else:
                rows[_partition_of(value)].append(value)
        return counted, rows


def _partition_of(row: dict[str, Any]) -> int:
    """The input partition whose messages make up a row of a join."""
    if "p" in row:
        return int(row["p"])
    return int(row["left"][0] if row["left"] is not None else row["right"] % PARTITIONS_MAX)
