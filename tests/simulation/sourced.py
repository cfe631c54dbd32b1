"""A workload for the simulation. A table that is restored from its topic must equal the topic's rows at any offset.

With a dead-letter topic, some messages are unreadable, and the table has no output. Otherwise the table's changes are
sent to the output topic.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from random import Random
from typing import Any

from holdfast.processors.application.application import Application
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.testing.cluster import InMemoryCluster
from holdfast.processors.testing.log import Entry
from tests.simulation.schedule import Schedule
from tests.simulation.verifier import Databases, Expected, FinalCheck, History, Seen
from tests.simulation.workload import ANY_TIME_AHEAD, DEAD, GROUP, INPUT, OUTPUT, Message, Workload

ROWS = "rows"
#: Bytes before the JSON of a message, which make it unreadable.
POISON = b"!"


class Row(Message):
    """One record of the table's topic: a row, a delete, or an unreadable message."""

    __slots__ = ()

    def encode(self, partition: int) -> bytes | None:  # type: ignore[override]
        """Return the value of the record. None deletes the row."""
        row = json.dumps({"p": partition, "n": self.number, "v": self.amount}).encode()
        if self.spoils:
            return POISON + row
        return None if self.drops else row


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedWorkload(Workload):
    """All records of the table's topic, by partition, in order."""

    @property
    def names(self) -> tuple[str, ...]:
        return (ROWS,)

    @property
    def changelogged(self) -> tuple[str, ...]:
        """Always empty, because the table's topic takes the place of a changelog."""
        return ()

    @property
    def input_config(self) -> Mapping[str, str]:
        """The configuration of the input: a compacted topic."""
        return {**ANY_TIME_AHEAD, "cleanup.policy": "compact"}

    def application(self, *, joined: bool = False, **settings: Any) -> Application:
        """The processor, which has only one version in this workload."""
        app = Application(
            "in-memory",
            consumer_group=GROUP,
            auto_offset_reset="earliest",
            processing_guarantee="exactly-once" if self.exactly_once else "at-least-once",
            loglevel=None,
            dead_letter_topic=DEAD if self.dead_letters else None,
            **settings,
        )
        rows = app.table(app.topic(INPUT), ROWS, changelog="source")
        if not self.dead_letters:
            rows.to_stream().to_topic(app.topic(OUTPUT))
        return app


def sourced_workload(schedule: Schedule) -> SourcedWorkload:
    """Draws records of a few keys in each partition, so that every row is written and deleted often."""
    random = Random(f"rows of {schedule.seed}")
    keys = [f"k{number}".encode() for number in range(random.randint(2, 30))]
    spoils = 0.1 if schedule.dead_letters else 0.0
    messages = tuple(
        tuple(
            Row(
                number,
                random.choice(keys),
                random.randint(1, 99),
                random.random() < 0.3,
                ROWS if random.random() < spoils else None,
            )
            for number in range(random.randint(10, 240 // schedule.partitions))
        )
        for _ in range(schedule.partitions)
    )
    return SourcedWorkload(messages, stores=1, exactly_once=schedule.exactly_once, dead_letters=schedule.dead_letters)


def expect_rows(workload: SourcedWorkload) -> Expected:
    """Computes the expected result from the input, in plain Python."""
    expected = Expected()
    for partition, messages in enumerate(workload.messages):
        rows = expected.states.setdefault((ROWS, partition), {})
        for message in messages:
            name, key = (partition, message.number), key_prefix(message.key) + b"row"
            if message.spoils:
                expected.dead.add(name)
            elif message.drops:
                rows.pop(key, None)
            else:
                rows[key] = {"p": partition, "n": message.number, "v": message.amount}
                if not workload.dead_letters:
                    expected.outputs[(*name, ROWS)] = message.amount
    return expected


class SourcedHistory(History):
    """The rows that result from the topic's records, computed without the engine."""

    def __init__(self, cluster: InMemoryCluster, workload: Workload) -> None:
        super().__init__(cluster, workload)
        self._topics = {ROWS: INPUT}

    def _kept(self, entry: Entry) -> tuple[bytes, bytes | None] | None:
        if entry.key is None or (entry.value or b"").startswith(POISON):
            return None
        value = None if entry.value is None else encode_value(json.loads(entry.value), entry.timestamp_ms)
        return key_prefix(entry.key) + b"row", value


class SourcedCheck(FinalCheck):
    """Checks the final state, after the whole input is processed."""

    def __init__(self, cluster: InMemoryCluster, workload: SourcedWorkload, history: History, seen: Seen) -> None:
        super().__init__(cluster, workload, expect_rows(workload), history, seen)

    def run(self, databases: Databases, excused: Set[int] = frozenset()) -> None:
        """Check outputs, dead letters, and the databases that the owners of tasks had at the end."""
        self._history.observe()
        self.check_outputs()
        self._check_dead_letters()
        for partition in range(len(self._workload.messages)):
            place = self._history.partition(ROWS, partition)
            folded = self._history.fold(place, self._cluster.log_end(place))
            self._check_state("state", f"topic {place.topic}[{partition}]", ROWS, partition, folded)
        self.check_databases("state", databases, excused)

    def check_outputs(self) -> None:
        """Check that each row was sent once.

        Raises:
            InvariantBroken: A row is lost, wrong, or sent twice.
        """
        sent = (json.loads(record.value) for _, record in self._seen.read(OUTPUT) if record.value is not None)
        self._count("outputs", Counter((row["p"], row["n"], ROWS) for row in sent), self._expected.outputs)

    def _check_dead_letters(self) -> None:
        raws = [record.value or b"" for _, record in self._seen.read(DEAD)]
        rows = [json.loads(raw.removeprefix(POISON)) for raw in raws]
        self._count("dead letters", Counter((row["p"], row["n"]) for row in rows), dict.fromkeys(self._expected.dead))
