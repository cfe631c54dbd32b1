"""Built-in running aggregates of each key: their definition, their stored form, and their computation one by one.

The state of a key is one JSON value under the state key ``aggregate``; columns are grouped by aggregator::

    {"format": 1, "count": {"orders": 3}, "sum": {"total": 12.5}, "mean": {"average": {"sum": 12.5, "count": 3}}}

``min``, ``max`` and ``last`` hold the value, ``collect`` a list, the oldest item first.

Invariants:
    - This module is the reference: ``columnar`` gives the same results and the same bytes, or leaves a run to it.
    - A column starts empty if the stored value lacks it, or holds another aggregator under its name.
    - No state holds a number that JSON can't hold: a total that overflows fails its message.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.processors.engine.changelog.format import FormatUnknown, unknown_version
from holdfast.processors.engine.formats.typed import field_names, is_object, plain, stored
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.step import Kept, Step

if TYPE_CHECKING:
    from holdfast.processors.engine.state.interface import State

#: The state key of an aggregation's single value for each message key.
STATE_KEY = "aggregate"
FORMAT = "format"
FORMAT_VERSION = 1

#: The input of a column: a field's name, a function of the message's value, or None for the value itself.
Field = str | Callable[[Any], Any] | None


class AggregationInvalid(BadConfiguration):
    """The declaration of an aggregation can't run."""


class AggregationFailed(HoldfastError):
    """A message lacks a field of an aggregation, or has a value that can't be aggregated."""


@dataclass(frozen=True, slots=True)
class Aggregator:
    """The computation of one column; use one of its subclasses.

    Args:
        of: The field's name; or a function of the value; or None for the whole value. The function must have no side
            effects, because it is called again if a message of its batch fails.
        column: The same as ``of``, under its name in Quix Streams.

    Raises:
        AggregationInvalid: ``of`` has another type, or both are given.
    """

    kind: ClassVar[str] = ""
    of: Field = None
    column: InitVar[Field] = field(default=None, kw_only=True)

    def __post_init__(self, column: Field) -> None:
        name = self.written
        if column is not None:
            if self.of is not None:
                raise AggregationInvalid(
                    f"{name} got the field {self.of!r} and the column {column!r}, expected one of them.",
                    action=f'Write, for example, `{name}("amount")`.',
                )
            object.__setattr__(self, "of", column)
        if self.of is not None and not isinstance(self.of, str) and not callable(self.of):
            raise AggregationInvalid(
                f"{name} got {self.of!r}, expected a field's name or a function of the value.",
                action=f'Write, for example, `{name}("amount")`.',
            )

    @property
    def written(self) -> str:
        """The code that declares the column, for errors."""
        return type(self).__name__

    def read(self, value: Any, column: str) -> Any:
        """The message's item for this column; raises AggregationFailed if it is missing or can't be aggregated."""
        of = self.of
        if isinstance(of, str):
            if isinstance(value, Mapping) and of in value:
                return value[of]
            if of in field_names(type(value)):
                return plain(getattr(value, of))
            seen = "is missing"
            if not is_object(value):
                seen += f": the value is a {type(value).__name__}, expected an object"
            raise self.failed(column, seen, type(value).__name__)
        if of is None:
            return stored(value)
        try:
            return of(value)
        except Exception as failure:
            raise self.failed(column, f"raised {type(failure).__name__}: {failure}", type(value).__name__) from failure

    def add(self, held: Any, item: Any, column: str) -> Any:
        """The stored value after one more message; ``held`` is the stored value before, None for the first message."""
        raise NotImplementedError

    def merge(self, earlier: Any, later: Any, column: str) -> Any:
        """The merged stored value of two windows; neither is None, and all times of the first window are earlier."""
        raise NotImplementedError

    @property
    def merges(self) -> bool:
        """Whether the column has ``merge``, so that sessions can use the column."""
        return type(self).merge is not Aggregator.merge

    def result(self, held: Any, column: str) -> Any:
        """The column's value in the output."""
        return held

    @property
    def by_time(self) -> bool:
        """Whether ``add`` takes a list of the event time and the item."""
        return False

    def failed(self, column: str, seen: str, seen_type: str) -> AggregationFailed:
        """The error for a message that this column can't aggregate."""
        return AggregationFailed(
            f"Column {column!r} is {self.describe()}, but the message's {_named(self.of)} {seen}.",
            action="Correct the producer, filter such messages before the aggregation, or set `dead_letter_topic`.",
            column=column,
            field=_shown(self.of),
            seen=seen_type,
        )

    def describe(self) -> str:
        """The column as text, for example ``sum(amount)``."""
        return f"{self.kind}({_shown(self.of)})"


@dataclass(frozen=True, slots=True)
class Count(Aggregator):
    """The number of messages; without a field."""

    kind: ClassVar[str] = "count"

    def __post_init__(self, column: Field) -> None:
        Aggregator.__post_init__(self, column)
        if self.of is not None:
            raise AggregationInvalid(
                f"Count counts messages and takes no field, but got {self.of!r}.",
                action="Write `Count()`, and filter messages before the aggregation.",
            )

    def read(self, value: Any, column: str) -> Any:
        """None, because a count needs nothing of the message."""
        return None

    def add(self, held: Any, item: Any, column: str) -> int:
        """The count plus one message."""
        return 1 if held is None else int(held) + 1

    def merge(self, earlier: Any, later: Any, column: str) -> int:
        """The sum of both counts."""
        return int(earlier) + int(later)


class _OfNumbers(Aggregator):
    __slots__ = ()

    def read(self, value: Any, column: str) -> int | float:
        item = Aggregator.read(self, value, column)
        if type(item) is float or type(item) is int:
            return self.finite(item, column)
        raise self.failed(column, f"is {type(item).__name__}, expected a number", type(item).__name__)

    def finite(self, number: int | float, column: str) -> int | float:
        """The number itself, if JSON can hold it; raises otherwise."""
        if type(number) is float and not isfinite(number):
            raise self.failed(column, f"gives {number}, which JSON can't hold", "float")
        return number


@dataclass(frozen=True, slots=True)
class Sum(_OfNumbers):
    """The total of a numeric field, added in the order of the messages."""

    kind: ClassVar[str] = "sum"

    def add(self, held: Any, item: Any, column: str) -> int | float:
        """The total with one more item."""
        return item if held is None else self.finite(_plus(self, held, item, column), column)

    def merge(self, earlier: Any, later: Any, column: str) -> int | float:
        """The sum of both totals."""
        return self.add(earlier, later, column)


#: Every float can hold whole numbers up to here.
_LARGE = 1 << 1023


@dataclass(frozen=True, slots=True)
class Mean(_OfNumbers):
    """The mean of a numeric field: its total, as ``Sum`` computes it, divided by the count."""

    kind: ClassVar[str] = "mean"

    def add(self, held: Any, item: Any, column: str) -> dict[str, Any]:
        """Total and count plus one item."""
        total, count = (0, 0) if held is None else (held["sum"], held["count"])
        made = item if held is None else self.finite(_plus(self, total, item, column), column)
        return self._held(made, count + 1, column)

    def merge(self, earlier: Any, later: Any, column: str) -> dict[str, Any]:
        """Both totals and counts, added."""
        total = self.finite(_plus(self, earlier["sum"], later["sum"], column), column)
        return self._held(total, earlier["count"] + later["count"], column)

    def _held(self, total: int | float, count: int, column: str) -> dict[str, Any]:
        held = {"sum": total, "count": count}
        if type(total) is int and not -_LARGE < total < _LARGE:
            self.result(held, column)  # the message fails, not the window that closes
        return held

    def result(self, held: Any, column: str) -> float:
        """Total divided by count."""
        try:
            return float(held["sum"] / held["count"])
        except OverflowError as failure:  # an integer above the largest float
            raise self.failed(column, "is an integer whose mean no float can hold", "int") from failure


class _Extreme(Aggregator):
    """The first of the extreme items: no other item beats it."""

    __slots__ = ()
    beats: ClassVar[Callable[[Any, Any], bool]]

    def read(self, value: Any, column: str) -> int | float | str:
        item = Aggregator.read(self, value, column)
        if type(item) is int or type(item) is str or (type(item) is float and isfinite(item)):
            return item
        seen = str(item) if type(item) is float else type(item).__name__
        raise self.failed(column, f"is {seen}, expected a number or a text", type(item).__name__)

    def add(self, held: Any, item: Any, column: str) -> Any:
        if held is None:
            return item
        if (type(held) is str) is not (type(item) is str):
            seen = f"is {type(item).__name__}, and the stored value is {type(held).__name__}: they can't be compared"
            raise self.failed(column, seen, type(item).__name__)
        return item if type(self).beats(item, held) else held

    def merge(self, earlier: Any, later: Any, column: str) -> Any:
        return self.add(earlier, later, column)


@dataclass(frozen=True, slots=True)
class Min(_Extreme):
    """The least value of a field of numbers, or of texts; the first one of equal values."""

    kind: ClassVar[str] = "min"
    beats: ClassVar[Callable[[Any, Any], bool]] = operator.lt


@dataclass(frozen=True, slots=True)
class Max(_Extreme):
    """The greatest value of a field of numbers, or of texts; the first one of equal values."""

    kind: ClassVar[str] = "max"
    beats: ClassVar[Callable[[Any, Any], bool]] = operator.gt


@dataclass(frozen=True, slots=True)
class Last(Aggregator):
    """The newest value of a field, of any type."""

    kind: ClassVar[str] = "last"

    def add(self, held: Any, item: Any, column: str) -> Any:
        """The new item."""
        return item

    def merge(self, earlier: Any, later: Any, column: str) -> Any:
        """The item of the later window."""
        return later


@dataclass(frozen=True, slots=True)
class Collect(Aggregator):
    """The newest ``limit`` values of a field, the oldest first; each message stores the whole list."""

    kind: ClassVar[str] = "collect"
    limit: int = 0

    def __post_init__(self, column: Field) -> None:
        Aggregator.__post_init__(self, column)
        if type(self.limit) is not int or self.limit < 1:
            raise AggregationInvalid(
                f"Collect has the limit {self.limit!r}, expected a whole number, 1 or more: each message stores the "
                "whole list.",
                action='Write, for example, `Collect("amount", limit=100)` to keep the newest hundred.',
            )

    def add(self, held: Any, item: Any, column: str) -> list[Any]:
        """The list with the new item, without the oldest items beyond the limit."""
        return [*(held or ()), item][-self.limit :]

    def describe(self) -> str:
        """The column as text, for example ``collect(amount, limit=100)``."""
        return f"{self.kind}({_shown(self.of)}, limit={self.limit})"


AGGREGATORS: Mapping[str, type[Aggregator]] = {made.kind: made for made in (Count, Sum, Mean, Min, Max, Last, Collect)}


class Aggregation(Step):
    """The columns of one aggregation, in the order of the output; a stateful function of one message.

    Raises AggregationInvalid if there are no columns, or one is no aggregator.
    """

    store_kind: ClassVar[str] = "aggregation"
    called: ClassVar[str] = "an aggregation"
    #: What a column may be.
    aggregators: ClassVar[tuple[type[Aggregator], ...]] = tuple(AGGREGATORS.values())
    #: The allowed aggregators as text, and how columns are written; for errors.
    expected: ClassVar[str] = "one of " + ", ".join(each.__name__ for each in AGGREGATORS.values())
    written: ClassVar[str] = 'aggregate({"total": Sum("amount")})'

    def __init__(self, columns: Mapping[str, Aggregator]) -> None:
        if not columns:
            raise AggregationInvalid(
                "An aggregation has no columns; expected at least one.",
                action=f"Write, for example, `{self.written}`.",
            )
        for name, made in columns.items():
            self._check_column(name, made)
        self.columns: Mapping[str, Aggregator] = dict(columns)
        #: The step's name in errors.
        self.__name__ = "aggregate"

    def _check_column(self, name: Any, made: Any) -> None:
        step = self.written.partition("(")[0]
        if not isinstance(name, str) or not name:
            raise AggregationInvalid(
                f"A column has the name {name!r}, expected a text that is not empty.",
                action=f"Correct the name in `{step}`.",
            )
        if isinstance(made, Aggregator) and type(made) in self.aggregators:
            return
        is_class = isinstance(made, type)
        raise AggregationInvalid(
            f"Column {name!r} is {f'the class {made.__name__}' if is_class else repr(made)}, expected {self.expected}.",
            action=f"Write `{made.__name__}(...)`: an object."
            if is_class
            else f"Write, for example, `{self.written}`.",
            column=name,
        )

    @property
    def kinds(self) -> dict[str, list[str]]:
        """The columns' names by aggregator, both in the order of the columns."""
        found: dict[str, list[str]] = {}
        for name, made in self.columns.items():
            found.setdefault(made.kind, []).append(name)
        return found

    @property
    def functions(self) -> tuple[Callable[[Any], Any], ...]:
        """The user functions of the columns."""
        return tuple(made.of for made in self.columns.values() if callable(made.of))

    @property
    def kept(self) -> Kept:
        """The aggregates of its columns."""
        return self

    @property
    def use(self) -> None:
        """Aggregates keep nothing about time."""

    def lines(self) -> tuple[str, ...]:
        """One line for each column, for example ``total = sum(amount)``."""
        return tuple(f"{name} = {made.describe()}" for name, made in self.columns.items())

    def __call__(self, value: Any, state: State) -> dict[str, Any]:
        """Adds one message to the state of its key; returns the key's aggregates.

        Raises:
            AggregationFailed: The message can't be aggregated; the state is unchanged.
            FormatUnknown: The stored aggregates have another format version.
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


def aggregation_of(node: Node) -> Aggregation | None:
    """The built-in aggregation of a step; None for another step."""
    return node.function if isinstance(node.function, Aggregation) else None


_NOTHING: Mapping[str, Any] = {}


def stored_columns(stored: Any) -> Mapping[str, Any]:
    """The columns of a stored value, by aggregator and then by name; none for the stored value None.

    Raises FormatUnknown if the value has another format version, or is no aggregate.
    """
    if stored is None:
        return _NOTHING
    version = stored.get(FORMAT) if type(stored) is dict or isinstance(stored, Mapping) else None
    if version != FORMAT_VERSION:
        action = "Run the Holdfast version that wrote it, or set another `store` for the aggregation."
        raise unknown_version("A stored aggregate", version, FORMAT_VERSION, action=action)
    for kind, columns in stored.items():
        if kind != FORMAT and type(columns) is not dict and not isinstance(columns, Mapping):
            raise FormatUnknown(
                f"The stored aggregates of {kind!r} are {type(columns).__name__}, expected an object.",
                action="Find the program that wrote them. Then name another `store`: the aggregation begins empty.",
            )
    made: Mapping[str, Any] = stored
    return made


def _plus(made: Aggregator, held: int | float, item: int | float, column: str) -> int | float:
    try:
        return held + item
    except OverflowError as failure:  # an integer above the largest float
        raise made.failed(column, "is an integer that can't be added to a float", "int") from failure


def _shown(of: Field) -> str:
    if of is None or isinstance(of, str):
        return of or ""
    return str(getattr(of, "__qualname__", type(of).__qualname__))


def _named(of: Field) -> str:
    return "value" if of is None else f"field {of!r}" if isinstance(of, str) else f"function {_shown(of)}"
