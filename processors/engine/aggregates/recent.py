"""The steps ``drop_duplicates`` and ``moving_average``, which use the recent messages of a key.

The state of a key expires if the key gets no messages. It does not expire if ``over`` of the average is a count of
messages instead of a duration.
"""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from math import fsum, isfinite
from typing import Any, ClassVar

import msgspec

from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.aggregates.aggregation import AggregationInvalid, Aggregator, Field
from holdfast.processors.engine.changelog.json_values import number_fault
from holdfast.processors.engine.formats.typed import fields_of
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.key_times import Keeping
from holdfast.processors.engine.steps.durations import milliseconds
from holdfast.processors.engine.steps.step import Step, StoreForm, StoreUse
from holdfast.processors.engine.steps.store_options import BY_VALUE, StoreOptions

#: The prefix of the state keys that ``drop_duplicates`` uses, and the single state key of ``moving_average``.
SEEN, NUMBERS = "seen/", "numbers"
#: Default time after which a key without messages is forgotten.
REMEMBER = timedelta(days=1)
#: Bytes. If the JSON text by which ``drop_duplicates`` compares messages is longer, its hash is used as state key.
TEXT_BYTES_MAX = 120

_encode = msgspec.json.Encoder(order="deterministic").encode


def _is_finite(number: float) -> bool:
    """Whether the number is finite and can be converted to a float."""
    try:
        return isfinite(number)
    except OverflowError:  # raised if the number is an integer above the largest float
        return False


def _mean(numbers: Sequence[float]) -> float:
    try:
        return fsum(numbers) / len(numbers)
    except OverflowError:  # raised if the sum is above the largest float; the mean may still fit
        return float(sum(map(Fraction, numbers)) / len(numbers))


@dataclass(frozen=True, slots=True)
class Distinct(Aggregator):
    """Reads the part of a message's value by which ``drop_duplicates`` recognizes equal messages."""

    kind: ClassVar[str] = "drop_duplicates"

    @property
    def written(self) -> str:
        """The step's name, used in errors."""
        return self.kind


@dataclass(frozen=True, slots=True)
class Averaged(Aggregator):
    """Reads the number in a message's value that ``moving_average`` averages."""

    kind: ClassVar[str] = "moving_average"

    @property
    def written(self) -> str:
        """The step's name, used in errors."""
        return self.kind


class DropDuplicates(Step):
    """The filter ``drop_duplicates``. If a key has several equal messages within ``within``, only the first passes.

    Raises:
        AggregationInvalid: ``by`` is neither a field nor a function.
        DurationInvalid: ``within`` is out of range.
    """

    def __init__(self, by: Field, within: int | timedelta, remember: int | timedelta = REMEMBER) -> None:
        if isinstance(by, (list, tuple)) and all(isinstance(each, str) for each in by):
            fields = ", ".join(f'value["{each}"]' for each in by)
            raise AggregationInvalid(
                f"`drop_duplicates` got the fields {list(by)!r}, expected one field's name or a function of the value.",
                action=f"Write `drop_duplicates(lambda value: [{fields}], ...)`.",
            )
        self._by = Distinct(by)
        self._within_ms = milliseconds("within", within, least=1)
        self._remember_ms = max(self._within_ms, milliseconds("remember", remember, least=1))
        self.__name__ = self.__qualname__ = self._by.describe()

    @property
    def store_use(self) -> StoreUse:
        """Declares that the step has a store of its own, which no other step uses."""
        return StoreUse(StoreForm.OWN, drops_known=True)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""
        return (self._by.of,) if callable(self._by.of) else ()

    def options(self, store: str) -> StoreOptions:
        """Returns the options with which the step's store is declared."""
        keeping = Keeping(SEEN, (), self._within_ms, self._remember_ms)
        steps = (f"{self._by.describe()}, each key by its own time, remembered for {self._remember_ms} ms",)
        return StoreOptions(store, ttl=self._within_ms, steps=steps, keeping=keeping)

    def __call__(self, value: Any, state: DeclaredState) -> bool:
        """Returns True if the message passes the filter; False for a duplicate and for a late message."""
        read = self._by.read(value, "duplicates")
        try:
            text = _encode(read)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError) as failure:
            raise self._by.failed("duplicates", f"is no JSON: {failure}", type(read).__name__) from failure
        if (fault := number_fault(read, text)) is not None:
            raise self._by.failed("duplicates", f"is no JSON: {fault}", type(read).__name__)
        short = len(text) <= TEXT_BYTES_MAX
        key = f"{SEEN}{text.decode() if short else 'sha256:' + hashlib.sha256(text).hexdigest()}"
        times = state.key_times
        if not times.admits():
            return False
        first_ms = times.time_of(key)
        if first_ms is not None and state.timestamp_ms < first_ms + self._within_ms:
            return False
        state.set(key, 1)
        if first_ms is None:
            times.enter(key)
        return True


class MovingAverage(Step):
    """The function of ``moving_average``. It adds the average of the key's newest numbers to each message's value.

    Raises:
        AggregationInvalid: ``of`` is neither a field nor a function, or the average has no name.
        DurationInvalid: ``over`` is out of range.
    """

    def __init__(
        self, of: Field, over: int | timedelta, into: str | None, remember: int | timedelta = REMEMBER
    ) -> None:
        self._of = Averaged(of)
        if into is None and not isinstance(of, str):
            raise AggregationInvalid(
                f"`moving_average` of {of!r} has no name for the average.",
                action='Write, for example, `moving_average(price_of, over=20, into="price_average")`.',
            )
        self.into = f"{of}_average" if into is None else into
        if not isinstance(over, timedelta) and (type(over) is not int or over < 1):
            raise AggregationInvalid(
                f"`over` is {over!r}, expected a whole number of messages from 1, or a timedelta.",
                action="Write, for example, `over=20` or `over=timedelta(minutes=5)`.",
                seen=repr(over),
            )
        self._count = over if isinstance(over, int) else None
        self._lasts_ms = milliseconds("over", over, least=1) if isinstance(over, timedelta) else 0
        self._remember_ms = max(self._lasts_ms, milliseconds("remember", remember, least=1))
        self.__name__ = self.__qualname__ = self._of.describe()

    @property
    def store_use(self) -> StoreUse:
        """Declares that the step has a store of its own, which no other step uses."""
        return StoreUse(StoreForm.OWN)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""
        return (self._of.of,) if callable(self._of.of) else ()

    def options(self, store: str) -> StoreOptions:
        """Returns the options with which the step's store is declared."""
        over = f"{self._lasts_ms} ms" if self._count is None else f"{self._count} messages"
        line = f"{self.into} = {self._of.describe()} over {over}"
        if self._count is not None:
            return StoreOptions(store, steps=(line,))
        keeping = Keeping("", (NUMBERS,), self._lasts_ms, self._remember_ms)
        steps = (f"{line}, each key by its own time, remembered for {self._remember_ms} ms",)
        return StoreOptions(store, ttl=BY_VALUE, steps=steps, keeping=keeping)

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers, state: Any) -> dict[str, Any]:
        """Returns the value with the average as an additional field."""
        number = self._of.read(value, self.into)
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not _is_finite(number):
            raise self._of.failed(self.into, f"is {repr(number)[:80]}, expected a number", type(number).__name__)
        if (fields := fields_of(value)) is None:
            seen = f"is in a value of type {type(value).__name__}, expected an object to which the average is added"
            raise self._of.failed(self.into, seen, type(value).__name__)
        if self._count is not None:
            numbers = state.append(NUMBERS, number, keep_last=self._count)
        else:
            numbers = self._lately(number, timestamp, state)
        return {**fields, self.into: _mean(numbers)}

    def _lately(self, number: float, timestamp: int, state: DeclaredState) -> list[float]:
        """Returns the numbers to average: those with an event time within ``over`` before the newest event time.

        A message may be dated so far in the future that it does not advance the newest event time. Its number then
        counts only in its own average.
        """
        times = state.key_times
        # ``admits`` must run before the numbers are read, because it deletes the numbers of a key that has expired.
        admitted = times.admits()
        held: list[list[Any]] = state.get(NUMBERS, default=[])
        if admitted:
            insort(held, [timestamp, number], key=lambda each: each[0])
            held = [each for each in held if each[0] > times.newest_ms - self._lasts_ms]
            state.set(NUMBERS, held)
        upto = max(times.newest_ms, timestamp)
        return [each for time, each in held if upto - self._lasts_ms < time <= upto] or [number]
