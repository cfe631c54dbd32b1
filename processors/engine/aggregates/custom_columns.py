"""Window columns that users write: subclasses of ``Aggregator`` and ``Collector``, as in Quix Streams.

A custom column is stored as a list of two elements: the text ``state_suffix``, which identifies the state's form, and
the state itself. If ``state_suffix`` changes, the stored state is ignored, and the column starts empty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar

from holdfast.processors.engine.aggregates import aggregation
from holdfast.processors.engine.formats.typed import stored


class Aggregator(ABC):
    """Base class of a user's window column with one value for each window. The value (its state) must be a JSON value.

    For session windows, the subclass also needs a method ``merge(earlier, later)``, which merges the states of two
    sessions.
    """

    def __init__(self, column: str | None = None) -> None:
        self.column = column

    @property
    def state_suffix(self) -> str:
        """A text that identifies the form of the state.

        If it changes, the column of an open window starts again from ``initialize``.
        """
        column = getattr(self, "column", None)
        return type(self).__name__ if column is None else f"{type(self).__name__}/{column}"

    @abstractmethod
    def initialize(self) -> Any:
        """Returns the state before the first message of a window."""

    @abstractmethod
    def agg(self, *given: Any, **named: Any) -> Any:
        """Returns the state after a message. Define ``agg(self, old, new)``; ``new`` is the message's value.

        A method ``agg(self, old, new, timestamp)`` also gets the event time in milliseconds.
        """

    @abstractmethod
    def result(self, value: Any) -> Any:
        """Converts the state ``value`` to the column's value in a result."""


class Collector(ABC):
    """Base class of a user's window column that keeps all values of a window and computes its result from them."""

    def __init__(self, column: str | None = None) -> None:
        self._column = column

    @property
    def column(self) -> str | None:
        """The name of the field to keep; None for the whole value."""
        return getattr(self, "_column", None)

    @abstractmethod
    def result(self, items: list[Any]) -> Any:
        """Converts the kept values, in processing order, to the column's value in a result."""


@dataclass(frozen=True, slots=True)
class CustomColumn(aggregation.Aggregator):
    """Adapts an object of a user's ``Aggregator`` class to the engine's own columns."""

    kind: ClassVar[str] = "custom"
    made: Any = None
    #: Whether the user's ``agg`` also takes the event time.
    timed: bool = False

    def add(self, held: Any, item: Any, column: str) -> Any:
        """Returns the list [state_suffix, state] after one more message."""
        known = held is not None and held[0] == self.made.state_suffix
        given = (item[1], item[0]) if self.timed else (item,)
        return [self.made.state_suffix, self.made.agg(held[1] if known else self.made.initialize(), *given)]

    def merge(self, earlier: Any, later: Any, column: str) -> Any:
        """Merges two states with the user's ``merge``.

        A state that was stored with another ``state_suffix`` is ignored.
        """
        suffix = self.made.state_suffix
        there = [held for held in (earlier, later) if held[0] == suffix]
        return [suffix, self.made.merge(earlier[1], later[1])] if len(there) == 2 else (there or [later])[0]

    @property
    def by_time(self) -> bool:
        """Whether the user's ``agg`` also takes the event time."""
        return self.timed

    @property
    def merges(self) -> bool:
        """Whether the user's class has a method ``merge``."""
        return callable(getattr(self.made, "merge", None))

    def result(self, held: Any, column: str) -> Any:
        """Calls the user's ``result`` with the state; returns None if the state has another ``state_suffix``."""
        return self.made.result(held[1]) if held[0] == self.made.state_suffix else None

    def describe(self) -> str:
        """The column as text, for example ``custom(PowerSum)``."""
        return f"{self.kind}({self.made.state_suffix})"


@dataclass(frozen=True, slots=True)
class CollectedColumn(aggregation.Aggregator):
    """Adapts an object of a user's ``Collector`` class to the engine's own columns."""

    kind: ClassVar[str] = "collected"
    made: Any = None

    def add(self, held: Any, item: Any, column: str) -> list[Any]:
        """Returns the stored list with the message's item at its end."""
        return [*(held or ()), item]

    def merge(self, earlier: Any, later: Any, column: str) -> list[Any]:
        """Returns the values of the earlier session, followed by those of the later session."""
        return [*earlier, *later]

    def result(self, held: Any, column: str) -> Any:
        """Calls the user's ``result`` with all values that the window has kept."""
        return self.made.result(held)

    def describe(self) -> str:
        """The column as text, for example ``collected(Reversed, amount)``."""
        return f"{self.kind}({type(self.made).__name__}{'' if self.of is None else f', {self.of}'})"


@dataclass(frozen=True, slots=True)
class OfInstances:
    """A column of user functions, which get instances of a class.

    Columns keep messages in their JSON form, because state holds no instances. ``keep`` makes this form and checks it,
    and ``row`` makes an instance from it. A function gets an instance whether its message is the present one, or comes
    from the state.
    """

    made: aggregation.Aggregator
    row: Callable[[Any], Any]
    keep: Callable[[Any], Any]

    def read(self, value: Any, column: str) -> Any:
        """Returns the message's item for this column."""
        return self.keep(value) if isinstance(self.made, CollectedColumn) else value

    def add(self, held: Any, item: Any, column: str) -> Any:
        """Returns the column's stored value after one more message."""
        if isinstance(self.made, CollectedColumn):
            return self.made.add(held, item, column)
        given = [item[0], self.row(item[1])] if self.made.by_time else self.row(item)
        return [stored(part) for part in self.made.add(held, given, column)]

    def result(self, held: Any, column: str) -> Any:
        """Returns the column's value in a result."""
        if isinstance(self.made, CollectedColumn):
            held = [self.row(item) for item in held]
        return self.made.result(held, column)


def columns_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns with each user's object wrapped, so that the engine can use it like a built-in column."""
    return {name: _column(made) for name, made in given.items()}


def _column(made: Any) -> Any:
    if isinstance(made, Aggregator):
        return CustomColumn(made=made, timed=_takes_time(made.agg))
    return CollectedColumn(made.column, made) if isinstance(made, Collector) else made


def _takes_time(agg: Callable[..., Any]) -> bool:
    """Whether a user's ``agg`` accepts a third argument, the event time."""
    try:
        signature(agg).bind(None, None, 0)
    except TypeError:
        return False
    return True


def methods_of(column: aggregation.Aggregator) -> tuple[Callable[..., Any], ...]:
    """Returns the methods of the user's class that this column calls; empty for a built-in column."""
    if isinstance(column, CustomColumn):
        return (column.made.agg, column.made.result)
    return (column.made.result,) if isinstance(column, CollectedColumn) else ()
