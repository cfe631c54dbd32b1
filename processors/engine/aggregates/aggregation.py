"""Built-in running aggregates, such as ``Sum`` and ``Count``, of the messages of each message key.

The module has the declarations of the columns and the code that adds a message. The state of a message key is one JSON
value under the state key ``aggregate``. Columns are grouped by their aggregator::

    {"format": 1, "count": {"orders": 3}, "sum": {"total": 12.5}, "mean": {"average": {"sum": 12.5, "count": 3}}}

``min``, ``max`` and ``last`` store the value. ``collect`` stores a list, with the oldest item first.

Invariants:
    - This module defines the results. The module ``columnar``, which uses numpy, gives the same results and the same
      bytes, or refuses the batch of messages.
    - A column starts empty if the stored value has no column of this name, or if the stored column of this name has
      another aggregator.
    - The state never has a number that JSON can't hold. A message that makes a total overflow fails.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.processors.engine.aggregates.decimals import instead_of_decimal
from holdfast.processors.engine.changelog.format import FormatUnknown, unknown_version
from holdfast.processors.engine.formats.typed import field_names, is_object, plain, stored
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.step import Kept, Step

if TYPE_CHECKING:
    from holdfast.processors.engine.state.interface import State

#: The state key under which an aggregation stores its single value for each message key.
STATE_KEY = "aggregate"
FORMAT = "format"
FORMAT_VERSION = 1

#: The argument ``of`` of a column: a field's name, a function of the message's value, or None for the whole value.
Field = str | Callable[[Any], Any] | None


class AggregationInvalid(BadConfiguration):
    """An argument in the declaration of an aggregation is invalid."""


class AggregationFailed(HoldfastError):
    """A message lacks a field of an aggregation, or has a value that can't be aggregated."""


@dataclass(frozen=True, slots=True)
class Aggregator:
    """The declaration of one column. Use one of the subclasses, for example ``Sum("amount")``.

    Args:
        of: The field's name, a function of the value, or None for the whole value. The function must have no side
            effects, because it is called again if a message of its batch fails.
        column: Another name for ``of``, as in Quix Streams.

    Raises:
        AggregationInvalid: ``of`` has an unsupported type, or both ``of`` and ``column`` are given.
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
        """An example of this column's declaration as Python code, for example ``Sum("amount")``.

        Errors show it to the user.
        """
        return type(self).__name__

    def read(self, value: Any, column: str) -> Any:
        """Returns the message's item for this column. Raises AggregationFailed if the item is missing or unusable."""
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
        """Returns the column's stored value after one more message.

        ``held`` is the stored value before this message; it is None for the first message. ``item`` is the result of
        ``read`` for this message.
        """
        raise NotImplementedError  # every subclass defines this method

    def merge(self, earlier: Any, later: Any, column: str) -> Any:
        """Merges this column's stored values of two session windows, when a message connects the two windows.

        All event times of ``earlier`` are before those of ``later``. Neither of the two values is None.
        """
        raise NotImplementedError  # ``check_merges`` refuses a session window with a column that defines no ``merge``

    @property
    def merges(self) -> bool:
        """Whether the column implements ``merge``. Session windows need it."""
        return type(self).merge is not Aggregator.merge

    def result(self, held: Any, column: str) -> Any:
        """Converts the stored value to the column's value in the output."""
        return held

    @property
    def by_time(self) -> bool:
        """Whether ``add`` expects the item as a list [event time, item]."""
        return False

    def check_not_decimal(self, value: Any, item: Any, column: str) -> None:
        """Raises AggregationFailed if the item that was read from this value is a ``Decimal``."""
        action = instead_of_decimal(self.of, self.written, value, item)
        if action is not None:
            raise self.failed(column, "is Decimal, expected int or float: JSON has no Decimal", "Decimal", action)

    def failed(self, column: str, seen: str, seen_type: str, action: str | None = None) -> AggregationFailed:
        """The error for a message that this column can't aggregate."""
        return AggregationFailed(
            f"Column {column!r} is {self.describe()}, but the message's {_named(self.of)} {seen}.",
            action="Correct the producer, filter such messages before the aggregation, or set `dead_letter_topic`."
            if action is None
            else action,
            column=column,
            field=_shown(self.of),
            seen=seen_type,
        )

    def describe(self) -> str:
        """The column as text, for example ``sum(amount)``."""
        return f"{self.kind}({_shown(self.of)})"


@dataclass(frozen=True, slots=True)
class Count(Aggregator):
    """Counts messages. This aggregator takes no field."""

    kind: ClassVar[str] = "count"

    def __post_init__(self, column: Field) -> None:
        Aggregator.__post_init__(self, column)
        if self.of is not None:
            raise AggregationInvalid(
                f"Count counts messages and takes no field, but got {self.of!r}.",
                action="Write `Count()`, and filter messages before the aggregation.",
            )

    def read(self, value: Any, column: str) -> Any:
        """Returns None, because a count reads nothing from the message."""
        return None

    def add(self, held: Any, item: Any, column: str) -> int:
        """Returns the count plus 1."""
        return 1 if held is None else int(held) + 1

    def merge(self, earlier: Any, later: Any, column: str) -> int:
        """Returns the sum of the two counts."""
        return int(earlier) + int(later)


class _OfNumbers(Aggregator):
    __slots__ = ()

    def read(self, value: Any, column: str) -> int | float:
        item = Aggregator.read(self, value, column)
        if type(item) is float or type(item) is int:
            return self.finite(item, column)
        self.check_not_decimal(value, item, column)
        raise self.failed(column, f"is {type(item).__name__}, expected a number", type(item).__name__)

    def finite(self, number: int | float, column: str) -> int | float:
        """Returns the number if it is finite; raises AggregationFailed for infinity and NaN, which JSON can't hold."""
        if type(number) is float and not isfinite(number):
            raise self.failed(column, f"gives {number}, which JSON can't hold", "float")
        return number


@dataclass(frozen=True, slots=True)
class Sum(_OfNumbers):
    """The sum of a numeric field, added in the order of the messages."""

    kind: ClassVar[str] = "sum"

    def add(self, held: Any, item: Any, column: str) -> int | float:
        """Returns the sum with one more item."""
        return item if held is None else self.finite(_plus(self, held, item, column), column)

    def merge(self, earlier: Any, later: Any, column: str) -> int | float:
        """Returns the sum of the two windows' sums."""
        return self.add(earlier, later, column)


#: An integer below this size can be converted to a float without an overflow.
_LARGE = 1 << 1023


@dataclass(frozen=True, slots=True)
class Mean(_OfNumbers):
    """The mean of a numeric field: the sum, computed as in ``Sum``, divided by the count."""

    kind: ClassVar[str] = "mean"

    def add(self, held: Any, item: Any, column: str) -> dict[str, Any]:
        """Returns the sum and the count with one more item."""
        total, count = (0, 0) if held is None else (held["sum"], held["count"])
        made = item if held is None else self.finite(_plus(self, total, item, column), column)
        return self._held(made, count + 1, column)

    def merge(self, earlier: Any, later: Any, column: str) -> dict[str, Any]:
        """Returns the two windows' sums added, and their counts added."""
        total = self.finite(_plus(self, earlier["sum"], later["sum"], column), column)
        return self._held(total, earlier["count"] + later["count"], column)

    def _held(self, total: int | float, count: int, column: str) -> dict[str, Any]:
        held = {"sum": total, "count": count}
        if type(total) is int and not -_LARGE < total < _LARGE:
            # The mean is computed here already, so that an overflow fails only this message. Otherwise the overflow
            # would fail the whole window when the window closes.
            self.result(held, column)
        return held

    def result(self, held: Any, column: str) -> float:
        """Returns the sum divided by the count."""
        try:
            return float(held["sum"] / held["count"])
        except OverflowError as failure:  # raised if the sum is an integer above the largest float
            raise self.failed(column, "is an integer whose mean no float can hold", "int") from failure


class _Extreme(Aggregator):
    """Base class of ``Min`` and ``Max``. If several items are equal, the first of them is kept."""

    __slots__ = ()
    beats: ClassVar[Callable[[Any, Any], bool]]

    def read(self, value: Any, column: str) -> int | float | str:
        item = Aggregator.read(self, value, column)
        if type(item) is int or (type(item) is float and isfinite(item)):
            return item
        self.check_not_decimal(value, item, column)
        if type(item) is str:
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
    """The smallest value of a field of numbers or texts. If several values are equal, the first of them is kept."""

    kind: ClassVar[str] = "min"
    beats: ClassVar[Callable[[Any, Any], bool]] = operator.lt


@dataclass(frozen=True, slots=True)
class Max(_Extreme):
    """The largest value of a field of numbers or texts. If several values are equal, the first of them is kept."""

    kind: ClassVar[str] = "max"
    beats: ClassVar[Callable[[Any, Any], bool]] = operator.gt


@dataclass(frozen=True, slots=True)
class Last(Aggregator):
    """The value of a field in the message that was processed last. The value may have any type."""

    kind: ClassVar[str] = "last"

    def add(self, held: Any, item: Any, column: str) -> Any:
        """Returns the new item."""
        return item

    def merge(self, earlier: Any, later: Any, column: str) -> Any:
        """Returns the item of the later window."""
        return later


@dataclass(frozen=True, slots=True)
class Collect(Aggregator):
    """The newest ``limit`` values of a field, oldest first.

    For each message, the whole list is written to the store again.
    """

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
        """Returns the list with the new item at its end. If the list exceeds ``limit``, its oldest item is left out."""
        return [*(held or ()), item][-self.limit :]

    def describe(self) -> str:
        """The column as text, for example ``collect(amount, limit=100)``."""
        return f"{self.kind}({_shown(self.of)}, limit={self.limit})"


AGGREGATORS: Mapping[str, type[Aggregator]] = {made.kind: made for made in (Count, Sum, Mean, Min, Max, Last, Collect)}


class Aggregation(Step):
    """The columns of one aggregation, in output order.

    Calling the object adds one message to the state of the message's key.

    Raises AggregationInvalid if there is no column, or a column is not an aggregator.
    """

    store_kind: ClassVar[str] = "aggregation"
    called: ClassVar[str] = "an aggregation"
    #: The classes of columns that this kind of aggregation allows.
    aggregators: ClassVar[tuple[type[Aggregator], ...]] = tuple(AGGREGATORS.values())
    #: Texts for errors: the names of the allowed aggregators, and an example of a declaration.
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
        #: The step's name, used in errors.
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
        """Maps each aggregator's name to the names of its columns, for example ``{"sum": ["total", "tax"]}``."""
        found: dict[str, list[str]] = {}
        for name, made in self.columns.items():
            found.setdefault(made.kind, []).append(name)
        return found

    @property
    def functions(self) -> tuple[Callable[[Any], Any], ...]:
        """The user functions that read the columns' items from a message's value."""
        return tuple(made.of for made in self.columns.values() if callable(made.of))

    @property
    def kept(self) -> Kept:
        """Returns the aggregation itself: the same object is also the declaration of what the step's store contains."""
        return self

    @property
    def use(self) -> None:
        """Returns None. The property describes how a store's content depends on time, and an aggregation's does not."""

    def lines(self) -> tuple[str, ...]:
        """Describes each column in one line, for example ``total = sum(amount)``."""
        return tuple(f"{name} = {made.describe()}" for name, made in self.columns.items())

    def __call__(self, value: Any, state: State) -> dict[str, Any]:
        """Adds one message to the state of its key, and returns the key's result for each column.

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

    def results(self, stored: Any) -> dict[str, Any]:
        """Returns the result of each column of a stored value, by column name. A column without a value is left out.

        Raises:
            FormatUnknown: The value has another format version, or is not an aggregate.
        """
        held = stored_columns(stored)
        found = {name: (made, held.get(made.kind, _NOTHING).get(name)) for name, made in self.columns.items()}
        return {name: made.result(one, name) for name, (made, one) in found.items() if one is not None}


def aggregation_of(node: Node) -> Aggregation | None:
    """Returns the built-in aggregation of a step; None for any other step."""
    return node.function if isinstance(node.function, Aggregation) else None


_NOTHING: Mapping[str, Any] = {}


def stored_columns(stored: Any) -> Mapping[str, Any]:
    """Returns the columns of a stored value, by aggregator and name; empty if the stored value is None.

    Raises FormatUnknown if the value has another format version, or is not an aggregate.
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
    except OverflowError as failure:  # raised if the integer is above the largest float
        raise made.failed(column, "is an integer that can't be added to a float", "int") from failure


def _shown(of: Field) -> str:
    if of is None or isinstance(of, str):
        return of or ""
    return str(getattr(of, "__qualname__", type(of).__qualname__))


def _named(of: Field) -> str:
    return "value" if of is None else f"field {of!r}" if isinstance(of, str) else f"function {_shown(of)}"
