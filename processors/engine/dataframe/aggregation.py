"""Built-in running aggregates of each key: what they are, their stored form, and the plain way to compute them.

The state of a key is one JSON value under the state key ``aggregate``; columns are grouped by what they compute::

    {"format": 1, "count": {"orders": 3}, "sum": {"total": 12.5}, "mean": {"average": {"sum": 12.5, "count": 3}}}

``min``, ``max`` and ``last`` hold the value, ``collect`` a list, the oldest item first.

Invariants:
    - This module is the reference: ``columnar`` gives the same results and the same bytes, or leaves a slice to it.
    - A column that a stored value does not have begins anew, also when a name now stands for another computation.
    - No number that JSON can't hold gets into a state: a total that overflows fails its message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.processors.engine.changelog.format import FormatUnknown

if TYPE_CHECKING:
    from holdfast.processors.engine.state.interface import State

#: The state key under which an aggregation keeps its one value for each message key.
STATE_KEY = "aggregate"
FORMAT = "format"
FORMAT_VERSION = 1

#: What a column is about: a field by its name, a function of the message's value, or None for the value itself.
Field = str | Callable[[Any], Any] | None


class AggregationInvalid(HoldfastError):
    """An aggregation was declared in a way that can't run."""

    exit_code = EXIT_BAD_CONFIGURATION


class AggregationFailed(HoldfastError):
    """A message has not what an aggregation needs."""


@dataclass(frozen=True, slots=True)
class Aggregator:
    """One column's computation; use one of the classes below.

    Args:
        of: The field's name, a function of the value (called once for each message, without effects of its own;
            called again when a message of its batch fails), or None for the whole value.

    Raises:
        AggregationInvalid: ``of`` is nothing of these.
    """

    kind: ClassVar[str] = ""
    of: Field = None

    def __post_init__(self) -> None:
        if self.of is not None and not isinstance(self.of, str) and not callable(self.of):
            raise AggregationInvalid(
                f"{type(self).__name__} got {self.of!r}, expected a field's name or a function of the value.",
                action='Write, for example, Sum("amount").',
            )

    def read(self, value: Any, column: str) -> Any:
        """What the message has for this column.

        Raises:
            AggregationFailed: The field is missing.
        """
        of = self.of
        if isinstance(of, str):
            if isinstance(value, Mapping) and of in value:
                return value[of]
            seen = "is missing"
            if not isinstance(value, Mapping):
                seen += f": the value is {type(value).__name__}, no object"
            raise self.failed(column, seen, type(value).__name__)
        if of is None:
            return value
        try:
            return of(value)
        except Exception as failure:
            raise self.failed(column, f"raised {type(failure).__name__}: {failure}", type(value).__name__) from failure

    def add(self, held: Any, item: Any, column: str) -> Any:
        """What is held after one more message; ``held`` is None before the first."""
        raise NotImplementedError

    def result(self, held: Any, column: str) -> Any:
        """The column's value in the output."""
        return held

    def failed(self, column: str, seen: str, seen_type: str) -> AggregationFailed:
        """The error of a message that has not what this column needs."""
        return AggregationFailed(
            f"Column {column!r} is {self.describe()}, but the message's {_named(self.of)} {seen}.",
            action="Correct the producer, filter such messages before the aggregation, or set dead_letter_topic.",
            column=column,
            field=_shown(self.of),
            seen=seen_type,
        )

    def describe(self) -> str:
        """As in ``sum(amount)``."""
        return f"{self.kind}({_shown(self.of)})"


@dataclass(frozen=True, slots=True)
class Count(Aggregator):
    """The number of messages; it takes no field."""

    kind: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        if self.of is not None:
            raise AggregationInvalid(
                f"Count counts messages and takes no field, but got {self.of!r}.",
                action="Write Count(), and filter before the aggregation what is not to be counted.",
            )

    def read(self, value: Any, column: str) -> Any:
        """Nothing is asked of the message."""
        return None

    def add(self, held: Any, item: Any, column: str) -> int:
        """One more."""
        return 1 if held is None else int(held) + 1


class _OfNumbers(Aggregator):
    __slots__ = ()

    def read(self, value: Any, column: str) -> int | float:
        item = Aggregator.read(self, value, column)
        if type(item) is float or type(item) is int:
            return self.finite(item, column)
        raise self.failed(column, f"is {type(item).__name__}, expected a number", type(item).__name__)

    def finite(self, number: int | float, column: str) -> int | float:
        """The number, if JSON can hold it."""
        if type(number) is float and not isfinite(number):
            raise self.failed(column, f"gives {number}, which JSON can't hold", "float")
        return number


@dataclass(frozen=True, slots=True)
class Sum(_OfNumbers):
    """The total of a numeric field, added one by one in the order of the messages."""

    kind: ClassVar[str] = "sum"

    def add(self, held: Any, item: Any, column: str) -> int | float:
        """One more."""
        return item if held is None else self.finite(_plus(self, held, item, column), column)


@dataclass(frozen=True, slots=True)
class Mean(_OfNumbers):
    """The mean of a numeric field: the total, as ``Sum`` makes it, divided by the count."""

    kind: ClassVar[str] = "mean"

    def add(self, held: Any, item: Any, column: str) -> dict[str, Any]:
        """One more."""
        if held is None:
            return {"sum": item, "count": 1}
        return {"sum": self.finite(_plus(self, held["sum"], item, column), column), "count": held["count"] + 1}

    def result(self, held: Any, column: str) -> float:
        """Total by count."""
        try:
            return float(held["sum"] / held["count"])
        except OverflowError as failure:  # an integer beyond all floats
            raise self.failed(column, "is an integer whose mean no float can hold", "int") from failure


class _Ordered(Aggregator):
    __slots__ = ()

    def read(self, value: Any, column: str) -> int | float | str:
        item = Aggregator.read(self, value, column)
        if type(item) is int or type(item) is str or (type(item) is float and isfinite(item)):
            return item
        seen = str(item) if type(item) is float else type(item).__name__
        raise self.failed(column, f"is {seen}, expected a number or a text", type(item).__name__)

    def comparable(self, held: Any, item: Any, column: str) -> None:
        """Refuse to compare texts with numbers."""
        if (type(held) is str) is not (type(item) is str):
            seen = f"is {type(item).__name__}, and what is held {type(held).__name__}: they can't be compared"
            raise self.failed(column, seen, type(item).__name__)


@dataclass(frozen=True, slots=True)
class Min(_Ordered):
    """The least of a field of numbers, or of texts; of equal values the first."""

    kind: ClassVar[str] = "min"

    def add(self, held: Any, item: Any, column: str) -> Any:
        """One more."""
        if held is None:
            return item
        self.comparable(held, item, column)
        return item if item < held else held


@dataclass(frozen=True, slots=True)
class Max(_Ordered):
    """The greatest of a field of numbers, or of texts; of equal values the first."""

    kind: ClassVar[str] = "max"

    def add(self, held: Any, item: Any, column: str) -> Any:
        """One more."""
        if held is None:
            return item
        self.comparable(held, item, column)
        return item if item > held else held


@dataclass(frozen=True, slots=True)
class Last(Aggregator):
    """The newest value of a field, whatever it is."""

    kind: ClassVar[str] = "last"

    def add(self, held: Any, item: Any, column: str) -> Any:
        """The new one."""
        return item


@dataclass(frozen=True, slots=True)
class Collect(Aggregator):
    """The newest values of a field, the oldest first.

    Args:
        limit: How many are kept at the most: the whole list is stored with each message.
    """

    kind: ClassVar[str] = "collect"
    limit: int = 0

    def __post_init__(self) -> None:
        Aggregator.__post_init__(self)
        if type(self.limit) is not int or self.limit < 1:
            raise AggregationInvalid(
                f"Collect has the limit {self.limit!r}, expected a whole number from 1 on: a list that only grows "
                "would be stored whole with each message.",
                action='Write, for example, Collect("amount", limit=100) to keep the newest hundred.',
            )

    def add(self, held: Any, item: Any, column: str) -> list[Any]:
        """One more, and the oldest gone."""
        return [*(held or ()), item][-self.limit :]

    def describe(self) -> str:
        """With the limit."""
        return f"{self.kind}({_shown(self.of)}, limit={self.limit})"


AGGREGATORS: Mapping[str, type[Aggregator]] = {made.kind: made for made in (Count, Sum, Mean, Min, Max, Last, Collect)}


class Aggregation:
    """Columns over the messages of each key; called as a stateful function of one message.

    Args:
        columns: Aggregators by the column's name, in the order of the output.

    Raises:
        AggregationInvalid: There are no columns, or some are no aggregators.
    """

    def __init__(self, columns: Mapping[str, Aggregator]) -> None:
        if not columns:
            raise AggregationInvalid(
                "An aggregation has no columns.", action='Name at least one, as in aggregate({"orders": Count()}).'
            )
        for name, made in columns.items():
            _check_column(name, made)
        self.columns: Mapping[str, Aggregator] = dict(columns)
        #: What errors call the step.
        self.__name__ = "aggregate"

    @property
    def kinds(self) -> dict[str, list[str]]:
        """The columns' names by what they compute, both in the order of their first column."""
        found: dict[str, list[str]] = {}
        for name, made in self.columns.items():
            found.setdefault(made.kind, []).append(name)
        return found

    @property
    def functions(self) -> tuple[Callable[[Any], Any], ...]:
        """The users' functions in it."""
        return tuple(made.of for made in self.columns.values() if callable(made.of))

    def describe(self) -> tuple[str, ...]:
        """One line for each column, as in ``total = sum(amount)``."""
        return tuple(f"{name} = {made.describe()}" for name, made in self.columns.items())

    def __call__(self, value: Any, state: State) -> dict[str, Any]:
        """Take one message in, and give the key's aggregates.

        Raises:
            AggregationFailed: The message has not what a column needs; the state is as before.
            FormatUnknown: The stored aggregates are of another version.
        """
        held = stored_columns(state.get(STATE_KEY))
        stored: dict[str, Any] = {FORMAT: FORMAT_VERSION}
        results: dict[str, Any] = {}
        for name, made in self.columns.items():
            before = held.get(made.kind, _NOTHING).get(name)
            after = made.add(before, made.read(value, name), name)
            stored.setdefault(made.kind, {})[name] = after
            results[name] = made.result(after, name)
        state.set(STATE_KEY, stored)
        return results


_NOTHING: Mapping[str, Any] = {}


def stored_columns(stored: Any) -> Mapping[str, Any]:
    """What a stored value holds: by kind, then by column. None holds nothing.

    Raises:
        FormatUnknown: The value is of another version, or no aggregate.
    """
    if stored is None:
        return _NOTHING
    version = stored.get(FORMAT) if isinstance(stored, Mapping) else None
    if version != FORMAT_VERSION:
        raise FormatUnknown(
            f"Stored aggregates have format version {version}, expected {FORMAT_VERSION}.",
            action="Run the Holdfast version that wrote them, or give the aggregation a store of its own.",
            version=version,
        )
    return dict(stored)


def _check_column(name: Any, made: Any) -> None:
    if not isinstance(name, str) or not name:
        raise AggregationInvalid(
            f"A column has the name {name!r}, expected a text that is not empty.", action="Name columns by texts."
        )
    if isinstance(made, Aggregator) and type(made) in AGGREGATORS.values():
        return
    known = ", ".join(kind.__name__ for kind in AGGREGATORS.values())
    raise AggregationInvalid(
        f"Column {name!r} is {made!r}, which is no aggregator; there are {known}.",
        action='Write, for example, {"total": Sum("amount")}.',
        column=name,
    )


def _plus(made: Aggregator, held: int | float, item: int | float, column: str) -> int | float:
    try:
        return held + item
    except OverflowError as failure:  # an integer beyond all floats
        raise made.failed(column, "is an integer that can't be added to a float", "int") from failure


def _shown(of: Field) -> str:
    if of is None or isinstance(of, str):
        return of or ""
    return str(getattr(of, "__qualname__", type(of).__qualname__))


def _named(of: Field) -> str:
    return "value" if of is None else f"field {of!r}" if isinstance(of, str) else f"function {_shown(of)}"
