"""A workload for the simulation: a stream is grouped by another key, and has a total, windows and joins.

Messages of one group come from all partitions of the input, through a repartition topic. The results of a group do not
depend on the order between partitions. So ``expect_grouped`` computes the results from the input alone. Each message
counts once in its group and once in its window. The messages of a partition are out of order by less than the windows'
grace, so no message is late.

Live messages have the current time as event time. Producers send them while workers run, crash, freeze and rebalance.
Partitions differ in load: many messages, few messages, none for seconds, or many at one moment. No live message is
late, whichever worker owns its partition.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from holdfast.dataframe.windows import Count, Sum
from holdfast.infra.kafka.topics.partitioners import murmur2
from holdfast.processors.application.application import Application
from holdfast.processors.engine.changelog.format import decode_value, key_prefix, split_key
from holdfast.processors.engine.changelog.names import repartition_topic
from holdfast.processors.engine.state.time.window_keys import window_of
from holdfast.processors.testing.cluster import InMemoryCluster
from tests.simulation.grouped_joins import SIDES, TOPICS, WHICH, JoinsCheck, Sent, add_joins
from tests.simulation.grouped_rows import ROWS, TablesCheck, add_tables, has_tables
from tests.simulation.grouped_rows import TOPICS as TOPICS_OF_TABLES
from tests.simulation.schedule import Schedule
from tests.simulation.verifier import Content, Expected, FinalCheck, History, InvariantBroken, Seen
from tests.simulation.workload import GROUP, INPUT, OUTPUT, Spoilt, Workload

TOTALS, WINDOWS, GROUPING = "by-group", "windows", "group"
REPARTITION = repartition_topic(GROUP, GROUPING)
FIRST_MS = 1_690_000_000_000
#: Length and grace of windows, in milliseconds. The messages of a partition are out of order by less than the grace.
WINDOW_MS, GRACE_MS = 100, 40
#: The largest number of live messages in one partition.
LIVE_MAX = 120
GROUPS = ("a", "b", "a/b", "c", "ü")


class GroupedMessage(NamedTuple):
    """One input message. ``number`` counts the messages of its partition; ``at`` is its event time in milliseconds."""

    number: int
    key: bytes
    at: int
    group: str
    amount: int
    spoils: bool

    def time_ms(self, now_s: float) -> int:
        """The message's timestamp, which does not depend on when it is produced."""
        return self.at

    def encode(self, partition: int) -> bytes:
        return json.dumps(
            {"p": partition, "n": self.number, "g": self.group, "v": self.amount, "spoil": self.spoils}
        ).encode()


def checked(value: dict[str, Any]) -> dict[str, Any]:
    if value["spoil"]:
        raise Spoilt(GROUPING)
    return value


def count(value: dict[str, Any], state: Any) -> dict[str, Any]:
    state.set("total", [state.get("total", [0, 0])[0] + 1, state.get("total", [0, 0])[1] + value["v"]])
    return {"of": TOTALS, "p": value["p"], "n": value["n"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedWorkload(Workload):
    """All messages by partition, in order, grouped by the field ``group``.

    ``joins`` tells whether the processor has joins, ``tables`` whether it groups the rows of a table.
    """

    joins: bool = False
    tables: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (TOTALS, WINDOWS)

    @property
    def records_behind(self) -> int:
        """An upper bound for the number of records that the engine writes to all repartition topics for the input.

        In the worst case, each message has its own commit, and each commit writes a watermark to each partition.
        """
        topics = 1 + len(TOPICS) * self.joins + len(TOPICS_OF_TABLES) * self.tables
        return topics * (1 + len(self.messages)) * sum(map(len, self.messages))

    def stores_of(self, topic: str) -> tuple[str, ...]:
        return self.names if topic == REPARTITION else ()

    def application(self, *, joined: bool = False, **settings: Any) -> Application:
        """The processor, which has only one version in this workload."""
        app = self.without_steps(lambda error, *_: isinstance(error, Spoilt), settings)
        output = app.topic(OUTPUT)
        source = app.dataframe(app.topic(INPUT)).apply(checked)
        grouped = source.group_by("g", GROUPING)
        grouped.apply(count, stateful=True, store=TOTALS).to_topic(output)
        window = grouped.tumbling_window(WINDOW_MS, GRACE_MS, WINDOWS).agg(n=Count(), total=Sum("v"))
        window.final().apply(lambda value: {"of": WINDOWS, **value}).to_topic(output)
        if self.joins:
            left, right = (source.filter(which).group_by("g", side) for which, side in zip(WHICH, SIDES, strict=True))
            add_joins(left, right, output, GRACE_MS)
        if self.tables:
            add_tables(source, output)
        return app


@dataclass(slots=True)
class GroupedExpected(Expected):
    """The expected result if each message counts once.

    ``windows``: number and total of messages, by group and start.
    """

    windows: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    counted: set[tuple[int, int]] = field(default_factory=set)
    #: The stream time after the whole topic was read: the newest event time of all messages.
    time_ms: int = 0
    sent: list[Sent] = field(default_factory=list)

    @property
    def closed(self) -> set[tuple[str, int]]:
        return {key for key in self.windows if key[1] + WINDOW_MS + GRACE_MS <= self.time_ms}


def grouped_workload(schedule: Schedule) -> GroupedWorkload:
    """Draw messages of a few groups. The event times of two partitions may be hours apart."""
    if schedule.live:
        return live_workload(schedule)
    random = Random(f"grouped of {schedule.seed}")
    messages, at_first, rest_at = draw_messages(random, schedule)
    return GroupedWorkload(
        messages,
        stores=0,
        exactly_once=schedule.exactly_once,
        dead_letters=schedule.dead_letters,
        at_first=at_first,
        rest_at=rest_at,
        joins=random.random() < 0.6,
        tables=has_tables(schedule.seed),
    )


#: The start of the cluster's clock, in milliseconds since 1970.
PRESENT_MS = 1_700_000_000_000
#: The longest pause between two messages of a partition, in virtual seconds: for busy, steady and silent partitions.
PACES_S = (0.1, 0.4, 0.4, 2.0, 9.0)


def live_workload(schedule: Schedule) -> GroupedWorkload:
    """Messages with current event times. Each is produced at its event time, or later by less than the grace."""
    random = Random(f"live messages of {schedule.seed}")
    spoils, groups = random.choice([0.0, 0.0, 0.1]), GROUPS[: random.choice([1, 3, len(GROUPS)])]
    messages, moments = list[tuple[GroupedMessage, ...]](), list[tuple[float, ...]]()
    for _ in range(schedule.partitions):
        at_s, pace_s = random.uniform(0.0, 3.0), random.choice(PACES_S)
        made, when = list[GroupedMessage](), list[float]()
        while at_s < schedule.horizon_s - 1.0 and len(made) < LIVE_MAX:
            time = PRESENT_MS + int(at_s * 1000) - random.choice([0, 0, 0, 5, GRACE_MS - 5])
            message = GroupedMessage(len(made), b"k", time, random.choice(groups), random.randint(1, 9), False)
            made.append(message._replace(spoils=random.random() < spoils))
            when.append(at_s)
            at_s += random.choice([0.0, random.uniform(0.0, pace_s), random.uniform(0.0, pace_s)])
        messages.append(tuple(made))
        moments.append(tuple(when))
    return GroupedWorkload(
        tuple(messages),
        stores=0,
        exactly_once=schedule.exactly_once,
        dead_letters=schedule.dead_letters,
        moments=tuple(moments),
        joins=random.random() < 0.5,
        tables=has_tables(schedule.seed),
    )


def draw_messages(
    random: Random, schedule: Schedule
) -> tuple[tuple[tuple[GroupedMessage, ...], ...], tuple[int, ...], float | None]:
    """The messages of all partitions, the number that exists at the start, and when the rest arrives."""
    most, spoils = max(3, 160 // schedule.partitions), random.choice([0.0, 0.05, 0.15])
    groups = GROUPS[: random.choice([1, 3, len(GROUPS)])]
    apart = random.choice([0, 0, 1_000, 3_600_000])
    made = [
        _messages(
            random, range(random.randint(min(10, most), most)), groups, FIRST_MS - random.randint(0, apart), spoils
        )
        for _ in range(schedule.partitions)
    ]
    at_first = tuple(map(len, made))
    rest = Random(f"rest of {schedule.seed}")
    rest_at = rest.uniform(0.2, 1.0) if rest.random() < 0.4 else None
    if rest_at is not None:
        from_ms = max(each.at for messages in made for each in messages) + GRACE_MS
        for messages in made:
            numbers = range(len(messages), len(messages) + rest.randint(0, most))
            messages += _messages(rest, numbers, groups, from_ms + rest.randint(0, apart), spoils)
    return tuple(map(tuple, made)), at_first, rest_at


def _messages(random: Random, numbers: range, groups: tuple[str, ...], at: int, spoils: float) -> list[GroupedMessage]:
    made = list[GroupedMessage]()
    for number in numbers:
        at += random.choice([0, 1, 10, 30, 300])
        time = at - random.choice([0, 0, 0, 5, GRACE_MS - 1])
        group, amount = random.choice(groups), random.randint(1, 9)
        made.append(
            GroupedMessage(number, b"k%d" % random.randint(0, 4), time, group, amount, random.random() < spoils)
        )
    return made


def expect_grouped(workload: GroupedWorkload) -> GroupedExpected:
    """Computes the expected result from the input, in plain Python."""
    expected, partitions = GroupedExpected(), len(workload.messages)
    totals: dict[str, list[int]] = {}
    for partition, messages in enumerate(workload.messages):
        for message in messages:
            if message.spoils:
                expected.dead.add((partition, message.number))
                continue
            expected.counted.add((partition, message.number))
            expected.sent.append(Sent(partition, message.number, message.at, message.group))
            total = totals.setdefault(message.group, [0, 0])
            total[0], total[1] = total[0] + 1, total[1] + message.amount
            window = (message.group, message.at // WINDOW_MS * WINDOW_MS)
            n, amount = expected.windows.get(window, (0, 0))
            expected.windows[window] = (n + 1, amount + message.amount)
            expected.time_ms = max(expected.time_ms, message.at)
    for number in range(partitions):
        expected.states[(TOTALS, number)] = {
            key_prefix(group.encode()) + b"total": total
            for group, total in totals.items()
            if (murmur2(group.encode()) & 0x7FFFFFFF) % partitions == number
        }
    return expected


class GroupedCheck(FinalCheck):
    """Checks the final state, after the input and all messages in the repartition topics are processed."""

    _expected: GroupedExpected

    def __init__(self, cluster: InMemoryCluster, workload: GroupedWorkload, history: History, seen: Seen) -> None:
        super().__init__(cluster, workload, expect_grouped(workload), history, seen)
        joins = isinstance(workload, GroupedWorkload) and workload.joins
        self._joins = JoinsCheck(self._expected.sent if joins else [], GRACE_MS, GRACE_MS)
        tables = isinstance(workload, GroupedWorkload) and workload.tables
        self._tables = TablesCheck.of(
            (number, each.number, each.group, each.amount)
            for number, messages in enumerate(workload.messages if tables else ())
            for each in messages
            if not each.spoils
        )
        self._looked_at: object = None
        self._settled = False
        #: Partition -> the extent of the partition's log at the last check, and the offset after its last message.
        self._lasts: dict[Any, tuple[Any, int]] = {}

    def settled(self) -> bool:
        """Whether each message is counted and each due window is sent. A window is due after its end plus the grace."""
        if not self._read_to_the_end():  # this check comes first, because it is cheaper than reading the outputs again
            return False
        if not self._settled and (extent := self._seen.extent(OUTPUT)) != self._looked_at:
            self._looked_at = extent
            counted, windows, rows = self._sent()
            whole = counted.keys() >= self._expected.counted and windows.keys() >= self._expected.closed
            self._settled = whole and self._joins.complete(rows) and self._tables.complete(self._groups())
        return self._settled

    def _read_to_the_end(self) -> bool:
        """Whether the group has committed all messages in the repartition topics.

        Watermark records are ignored, because the engine writes them without end.
        """
        committed = self._cluster.committed_offsets(GROUP)
        topics = [topic for topic in (REPARTITION, *TOPICS, *TOPICS_OF_TABLES) if topic in self._cluster._broker.topics]
        places = [place for topic in topics for place in self._cluster._broker.partitions_of(topic)]
        return all((committed.get(place) or 0) >= self._last(place) for place in places)

    def _last(self, place: Any) -> int:
        log = self._cluster._broker.log(place)
        extent = (log, log.start, log.end, log.last_stable)
        known, last = self._lasts.get(place, (None, 0))
        if known != extent:
            entries, _ = log.read(log.start, log.end, committed=True)
            last = next((entry.offset + 1 for entry in reversed(entries) if entry.key is not None), 0)
            self._lasts[place] = extent, last
        return last

    def check_outputs(self) -> None:
        """Checks that each message counts once, each window is sent once and complete, and join rows are right."""
        counted, windows, rows = self._sent()
        self._count("outputs", counted, dict.fromkeys(self._expected.counted))
        for window, results in windows.items():
            right = self._expected.windows.get(window)
            if any(result != right for result in results):
                raise InvariantBroken("outputs", f"window {window} was sent as {results}, its messages give {right}")
        if lost := self._expected.closed - windows.keys():
            raise InvariantBroken("outputs", f"windows that never closed: {sorted(lost)[:3]}, {len(lost)} in all")
        again = [window for window, results in windows.items() if len(results) > 1]
        if again and self._workload.exactly_once and not self._seen.cleared:
            raise InvariantBroken("outputs", f"windows sent more than once: {sorted(again)[:3]}")
        self._joins.check(rows, once=self._workload.exactly_once and not self._seen.cleared)
        self._tables.check(self._groups())

    def _groups(self) -> dict[str, Any]:
        """The newest output of each group of table rows; None for a group without rows."""
        sent = ((record.key or b"", json.loads(record.value or b"null")) for _, record in self._seen.read(OUTPUT))
        return {key.decode(): value["group"] for key, value in sent if value["of"] == ROWS}

    def _sent(
        self,
    ) -> tuple[Counter[tuple[int, int]], dict[tuple[str, int], list[tuple[int, int]]], list[dict[str, Any]]]:
        """Read the counted messages, the results of windows, and the rows of joins from the output."""
        counted: Counter[tuple[int, int]] = Counter()
        rows: list[dict[str, Any]] = []
        windows: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for _, record in self._seen.read(OUTPUT):
            value, group = json.loads(record.value or b"null"), (record.key or b"").decode()
            if value["of"] == TOTALS:
                counted[value["p"], value["n"]] += 1
            elif value["of"] == ROWS:
                continue
            elif value["of"] != WINDOWS:
                rows.append(value)
            else:
                windows.setdefault((group, value["start"]), []).append((value["n"], value["total"]))
        return counted, windows, rows

    def _check_state(self, invariant: str, where: str, store: str, partition: int, held: Content) -> None:
        if store == TOTALS:
            super()._check_state(invariant, where, store, partition, held)
            return
        for key, raw in held.items():
            group, name = split_key(key)
            window, value = window_of(name), decode_value(raw)
            if window is not None:
                right = self._expected.windows.get((group.decode(), window[0]))
                if (value["count"]["n"], value["sum"]["total"]) != right:
                    raise InvariantBroken(invariant, f"{where}: window {group!r} {window} is {value}, expected {right}")
