"""The basic workload of the simulation: messages drawn from a seed, functions, and the expected result in plain Python.

The functions keep running totals in one or two stores, delete keys, and raise for some messages, before or after their
first writes. Alternatively, a built-in aggregation keeps the totals, without deletes. ``Expected`` computes the same
from the input alone, and shares no code with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from holdfast.processors.application.application import Application
from holdfast.processors.engine.aggregates.aggregation import (
    STATE_KEY,
    AggregationFailed,
    Aggregator,
    Count,
    Last,
    Max,
    Mean,
    Min,
    Sum,
)
from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.formats.serialization import ValueUnwritable
from holdfast.processors.engine.record_times import RecordTimeRefused

GROUP = "totals"
INPUT, SECOND, OUTPUT, DEAD = "orders", "refunds", "results", "spoilt"
#: The configuration of a topic that accepts timestamps in the future without a limit.
ANY_TIME_AHEAD = {"message.timestamp.after.max.ms": str(2**63 - 1)}
#: The kind of a message whose timestamp lies ``AHEAD_S`` seconds in the future. Such a message fails.
AHEAD, AHEAD_S = "ahead", 30 * 86_400.0
#: The kind of a message of 1970 that fails, because the output topic refuses its timestamp ``PAST_MS``.
PAST, PAST_MS = "past", 1
#: The kind of a message that fails, because the serializer or the client refuses its output.
UNWRITABLE = "unwritable"
STORES = ("first", "second")
#: A store that both inputs feed. Only one of the processor's two versions has it; in this version, a task reads both.
JOINT = "joint"

#: Identifies one output: (partition, number of the message, stage). The stage is the store of the step that sends it.
OutputName = tuple[int, int, str]


class Spoilt(Exception):
    """Raised by a step for messages that must fail."""


def newest(value: dict[str, Any], state: Any) -> dict[str, Any]:
    """The step of the version with the additional store: it stores the number of each key's newest message."""
    state.set("newest", value["n"])
    return value


class Message(NamedTuple):
    """One input message: ``number`` counts the messages of its partition.

    ``spoils`` names the store whose step raises after its writes. ``AHEAD`` and ``PAST`` stand for timestamps that the
    output topic refuses, ``UNWRITABLE`` for a result that the serializer refuses. ``old`` is whether it is of 1970.
    """

    number: int
    key: bytes
    amount: Any
    drops: bool
    spoils: str | None
    old: bool = False

    def time_ms(self, now_s: float) -> int:
        """The message's timestamp if it is produced now; 0 stands for the present time."""
        if self.old:
            return PAST_MS
        return int((now_s + AHEAD_S) * 1000) if self.spoils == AHEAD else 0

    def encode(self, partition: int) -> bytes:
        return json.dumps(
            {"p": partition, "n": self.number, "v": self.amount, "drop": self.drops, "spoil": self.spoils}
        ).encode()


class Total:
    """A stateful step that keeps a running total of each key; some messages delete the total."""

    def __init__(self, store: str) -> None:
        self._store = store

    def __call__(self, value: dict[str, Any], state: Any) -> dict[str, Any]:
        if value["drop"]:
            for key in ("total", "last"):
                state.delete(key)
            total = None
        else:
            total = state.get("total", 0) + value["v"]
            state.set("total", total)
            if value["n"] % 3 == 0:
                state.set("last", value["n"])
            elif state.exists("last"):
                state.delete("last")
        if value["spoil"] == self._store:
            raise Spoilt(self._store)
        return {**value, self._store: total}


@dataclass(frozen=True, slots=True)
class Workload:
    """All messages by partition, in order, and how they are processed.

    Attributes:
        apart: Whether each input has its own store; one of the versions then has one more store that both inputs feed.
        at_first: How many messages of each partition exist from the start; None if all arrive at random moments. The
            rest arrives while no process runs; none of it is older than the first messages.
        rest_at: When the rest arrives, as a fraction of ``horizon_s``; None if there is no rest.
        codecs: The codecs of the stores in the version without and in the version with the additional store. A deployed
            version reads the values that the other version wrote.
        moments: The virtual second at which each message is produced, by partition; empty if ``at_first`` applies.
    """

    messages: tuple[tuple[Message, ...], ...]
    stores: int
    exactly_once: bool
    dead_letters: bool
    aggregated: bool = False
    inputs: tuple[str, ...] = (INPUT,)
    form: str = "json"
    apart: bool = False
    at_first: tuple[int, ...] | None = None
    rest_at: float | None = None
    moments: tuple[tuple[float, ...], ...] = ()
    codecs: tuple[str, str] = ("json", "json")

    def topic_of(self, message: Message) -> str:
        """The input topic of a message. All messages of a key have the same topic, so they stay in order."""
        return self.inputs[message.key[-1] % len(self.inputs)]

    @property
    def names(self) -> tuple[str, ...]:
        """The stores whose content follows from the input."""
        return STORES[: self.stores]

    @property
    def all_names(self) -> tuple[str, ...]:
        """The stores that any version of the processor has."""
        return (*self.names, JOINT) if self.apart else self.names

    @property
    def changelogged(self) -> tuple[str, ...]:
        """The stores whose changelogs exist from the start."""
        return self.names

    @property
    def input_config(self) -> Mapping[str, str]:
        """The configuration of the input topics."""
        return ANY_TIME_AHEAD

    @property
    def records_behind(self) -> int:
        """An upper bound for the number of records in repartition topics (behind ``group_by``)."""
        return 0

    def stores_of(self, topic: str) -> tuple[str, ...]:
        """The stores that an input feeds."""
        return (self.names[self.inputs.index(topic)],) if self.apart else self.names

    def without_steps(self, skips: Callable[..., bool], settings: Mapping[str, Any]) -> Application:
        """The application without steps.

        Without a dead-letter topic, ``skips`` decides whether a failed message is skipped.
        """
        policy: dict[str, Any] = {"dead_letter_topic": DEAD} if self.dead_letters else {"on_processing_error": skips}
        return Application(
            "in-memory",
            consumer_group=GROUP,
            auto_offset_reset="earliest",
            processing_guarantee="exactly-once" if self.exactly_once else "at-least-once",
            loglevel=None,
            **policy,
            **settings,
        )

    def begun(self, app: Application, name: str) -> Any:
        """The stream of an input, with the steps in front of the functions."""
        return app.dataframe(app.topic(name))

    def ended(self, frame: Any) -> None:
        """Add steps behind the functions."""

    def application(self, *, joined: bool = False, **settings: Any) -> Application:
        """The processor; ``joined`` chooses the version with the additional store."""
        app = self.without_steps(_skip_spoilt, settings)
        # The engine computes by columns (in batches) only if outputs use its own JSON serializer.
        builtin = self.aggregated and self.form == "json"
        output = app.topic(OUTPUT, value_serializer="json" if builtin else Serializer(self.form))
        if not self.aggregated:
            for store in self.names:
                app.store(store, codec=self.codecs[joined])
        for name in self.inputs:
            frame = self.begun(app, name)
            if self.aggregated:
                frame.aggregate(COLUMNS, store=STORES[0]).to_topic(output)
                continue
            if joined:
                frame = frame.apply(newest, stateful=True, store=JOINT)
            for store in self.stores_of(name):
                frame = frame.apply(Total(store), stateful=True, store=store)
                frame = frame.to_topic(output, key=_ByStage(store))
            self.ended(frame)
        return app


class Serializer:
    """A user's serializer that returns JSON in one of several types, and an invalid number for ``UNWRITABLE``."""

    def __init__(self, form: str) -> None:
        self._form = form

    def __call__(self, value: dict[str, Any]) -> Any:
        if value.get("spoil") == UNWRITABLE:
            return value["n"]
        text = json.dumps(value)
        forms = {"bytearray": bytearray, "view": memoryview}
        return text if self._form == "text" else forms.get(self._form, bytes)(text.encode())


#: Aggregates that the engine computes by columns (whole batches at once), except in batches with a failing message.
COLUMNS: dict[str, Aggregator] = {
    "p": Last("p"),
    "n": Last("n"),
    STORES[0]: Sum("v"),
    "count": Count(),
    "mean": Mean("v"),
    "least": Min("v"),
    "most": Max("v"),
}


class _ByStage:
    """The key of an output: its stage, the store of the step that sends it."""

    def __init__(self, store: str) -> None:
        self._store = store

    def __call__(self, value: dict[str, Any]) -> bytes:
        return self._store.encode()


def _skip_spoilt(error: Exception, *_: Any) -> bool:
    return isinstance(error, (Spoilt, AggregationFailed, RecordTimeRefused, ValueUnwritable))


def aggregated(workload: Workload) -> Workload:
    """The same workload with a built-in aggregation: no message deletes, and some amounts are not integers."""

    def changed(message: Message) -> Message:
        amount = message.amount / 10 if message.number % 4 == 1 else message.amount
        return message._replace(
            amount="no number" if message.spoils not in (None, AHEAD, PAST) else amount, drops=False
        )

    messages = tuple(tuple(map(changed, of)) for of in workload.messages)
    return replace(workload, messages=messages, stores=1, aggregated=True)


def draw_workload(random: Random, partitions: int, stores: int, *, exactly_once: bool, dead_letters: bool) -> Workload:
    """Draws messages of a few keys, so that every key is often written, deleted, and used by a failing message."""
    keys = [f"k{number}".encode() for number in range(random.randint(2, 6))]
    drops, spoils = random.choice([0.05, 0.15, 0.3]), random.choice([0.0, 0.05, 0.15])
    names, most = STORES[:stores], max(3, 240 // partitions)
    return Workload(
        tuple(
            tuple(
                _some_are_ahead(
                    number,
                    random.choice(keys),
                    random.randint(1, 99),
                    random.random() < drops,
                    random.choice(names) if random.random() < spoils else None,
                )
                for number in range(random.randint(min(10, most), most))
            )
            for _ in range(partitions)
        ),
        stores,
        exactly_once,
        dead_letters,
    )


def _some_are_ahead(number: int, key: bytes, amount: int, drops: bool, spoils: str | None) -> Message:
    if spoils is not None and number % 5 == 4:
        spoils = UNWRITABLE
    return Message(number, key, amount, drops, AHEAD if spoils is not None and number % 3 == 0 else spoils)


def dated(workload: Workload, past: str) -> Workload:
    """The same workload with some messages of 1970; outputs with that timestamp are ``taken`` or ``refused``."""

    def changed(message: Message) -> Message:
        if message.number % 7 != 3 or message.spoils == AHEAD:
            return message
        return message._replace(old=True, spoils=message.spoils or (PAST if past == "refused" else None))

    return replace(workload, messages=tuple(tuple(map(changed, of)) for of in workload.messages))


def apart(workload: Workload) -> Workload:
    """The same workload with one store for each input."""
    made = replace(workload, apart=True)

    def changed(message: Message) -> Message:
        [own] = made.stores_of(made.topic_of(message))
        return message._replace(spoils=own) if message.spoils in STORES else message

    return replace(made, messages=tuple(tuple(map(changed, of)) for of in workload.messages))


@dataclass(slots=True)
class Expected:
    """The expected result if each message is processed once, in order.

    Attributes:
        outputs: The result of each output, by output name.
        dead: The messages that raise, as (partition, number).
        states: Changelog keys and values, by store and partition.
    """

    outputs: dict[OutputName, int | float | None] = field(default_factory=dict)
    dead: set[tuple[int, int]] = field(default_factory=set)
    states: dict[tuple[str, int], dict[bytes, Any]] = field(default_factory=dict)


def expect(workload: Workload) -> Expected:
    """Computes the expected result from the input, in plain Python."""
    expected = Expected()
    for partition, messages in enumerate(workload.messages):
        if workload.aggregated:
            _expect_aggregates(expected, partition, messages, workload)
            continue
        totals: dict[tuple[str, bytes], int | float] = {}
        lasts: dict[tuple[str, bytes], int] = {}
        for message in messages:
            if message.spoils is not None:
                expected.dead.add((partition, message.number))
                continue
            for store in workload.stores_of(workload.topic_of(message)):
                place = (store, message.key)
                if message.drops:
                    totals.pop(place, None)
                    lasts.pop(place, None)
                else:
                    totals[place] = totals.get(place, 0) + message.amount
                    lasts.pop(place, None)
                    if message.number % 3 == 0:
                        lasts[place] = message.number
                expected.outputs[(partition, message.number, store)] = totals.get(place)
        for store in workload.names:
            expected.states[(store, partition)] = {
                key_prefix(key) + name: values[(store, key)]
                for name, values in ((b"total", totals), (b"last", lasts))
                for owner, key in values
                if owner == store
            }
    return expected


def _expect_aggregates(expected: Expected, partition: int, messages: Sequence[Message], workload: Workload) -> None:
    """Adds the expected result of the built-in aggregation for one partition."""
    [store] = workload.names
    by_key: dict[bytes, list[Message]] = {}
    for message in messages:
        if message.spoils is not None:
            expected.dead.add((partition, message.number))
            continue
        by_key.setdefault(message.key, []).append(message)
        expected.outputs[(partition, message.number, store)] = _total(by_key[message.key])
    expected.states[(store, partition)] = {}
    for key, done in by_key.items():
        amounts = [message.amount for message in done]
        expected.states[(store, partition)][key_prefix(key) + STATE_KEY.encode()] = {
            "format": 1,
            "last": {"p": partition, "n": done[-1].number},
            "sum": {store: _total(done)},
            "count": {"count": len(done)},
            "mean": {"mean": {"sum": _total(done), "count": len(done)}},
            "min": {"least": min(amounts)},
            "max": {"most": max(amounts)},
        }


def _total(messages: Sequence[Message]) -> int | float:
    total: int | float = 0
    for message in messages:
        total += message.amount
    return total
