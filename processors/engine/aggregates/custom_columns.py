"""Columns of windows that users write: subclasses of ``Aggregator`` and ``Collector``, as in Quix Streams.

A custom column is stored as a list of two elements: the text that identifies its state, and the state. If the text
differs, the state starts again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar

from holdfast.processors.engine.aggregates import aggregation


class Aggregator(ABC):
    """A column that keeps one value for a window; subclass it. States must be JSON values.

    A subclass for sessions also has a method ``merge(earlier, later)``, which merges the states of two sessions.
    """

    def __init__(self, column: str | None = None) -> None:
        self.column = column

    @property
    def state_suffix(self) -> str:
        """Identifies the state; if it changes, the state of an open window starts again."""
        column = getattr(self, "column", None)
        return type(self).__name__ if column is None else f"{type(self).__name__}/{column}"

    @abstractmethod
    def initialize(self) -> Any:
        """The state before the first message of a window."""

    @abstractmethod
    def agg(self, *given: Any, **named: Any) -> Any:
        """The state after a message. Declare it as ``agg(self, old, new)``; ``new`` is the message's value.

        With a third argument, ``agg(self, old, new, timestamp)``, the method also gets the event time in milliseconds.
        """

    @abstractmethod
    def result(self, value: Any) -> Any:
        """The column's value in a result; ``value`` is the state."""


class Collector(ABC):
    """A column that keeps all values of a window; subclass it."""

    def __init__(self, column: str | None = None) -> None:
        self._column = column

    @property
    def column(self) -> str | None:
        """The field to keep; None for the whole value."""
        return getattr(self, "_column", None)

    @abstractmethod
    def result(self, items: list[Any]) -> Any:
        """The column's value in a result; ``items`` are the values in processing order."""


@dataclass(frozen=True, slots=True)
class CustomColumn(aggregation.Aggregator):
    """An ``Aggregator`` of a user."""

    kind: ClassVar[str] = "custom"
    made: Any = None
    #: Whether ``agg`` also gets the event time.
    timed: bool = False

    def add(self, held: Any, item: Any, column: str) -> Any:
        """The name of the state, and the state with one more message."""
        known = held is not None and held[0] == self.made.state_suffix
        given = (item[1], item[0]) if self.timed else (item,)
        return [self.made.state_suffix, self.made.agg(held[1] if known else self.made.initialize(), *given)]

    def merge(self, earlier: Any, later: Any, column: str) -> Any:
        """The result of the user's ``merge`` for two states; a state with another identity counts as absent."""
        suffix = self.made.state_suffix
        there = [held for held in (earlier, later) if held[0] == suffix]
        return [suffix, self.made.merge(earlier[1], later[1])] if len(there) == 2 else (there or [later])[0]

    @property
    def by_time(self) -> bool:
        """Whether ``agg`` also gets the event time."""
        return self.timed

    @property
    def merges(self) -> bool:
        """Whether the user's class has a method ``merge``."""
        return callable(getattr(self.made, "merge", None))

    def result(self, held: Any, column: str) -> Any:
        """The result of the user's ``result`` for the state; None for a state with another identity."""
        return self.made.result(held[1]) if held[0] == self.made.state_suffix else None

    def describe(self) -> str:
        """The column as text, for example ``custom(PowerSum)``."""
        return f"{self.kind}({self.made.state_suffix})"


@dataclass(frozen=True, slots=True)
class CollectedColumn(aggregation.Aggregator):
    """A ``Collector`` of a user."""

    kind: ClassVar[str] = "collected"
    made: Any = None

    def add(self, held: Any, item: Any, column: str) -> list[Any]:
        """The values with one more."""
        return [*(held or ()), item]

    def merge(self, earlier: Any, later: Any, column: str) -> list[Any]:
        """The values of the earlier session, then the values of the later session."""
        return [*earlier, *later]

    def result(self, held: Any, column: str) -> Any:
        """The result of the user's ``result`` for the values."""
        return self.made.result(held)

    def describe(self) -> str:
        """The column as text, for example ``collected(Reversed, amount)``."""
        return f"{self.kind}({type(self.made).__name__}{'' if self.of is None else f', {self.of}'})"


def columns_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The given columns, with users' columns wrapped as columns of the engine."""
    return {name: _column(made) for name, made in given.items()}


def _column(made: Any) -> Any:
    if isinstance(made, Aggregator):
        return CustomColumn(made=made, timed=_takes_time(made.agg))
    return CollectedColumn(made.column, made) if isinstance(made, Collector) else made


def _takes_time(agg: Callable[..., Any]) -> bool:
    """Whether a method can be called with a third argument."""
    try:
        signature(agg).bind(None, None, 0)
    except TypeError:
        return False
    return True


def methods_of(column: aggregation.Aggregator) -> tuple[Callable[..., Any], ...]:
    """The user functions of a custom column."""
    if isinstance(column, CustomColumn):
        return (column.made.agg, column.made.result)
    return (column.made.result,) if isinstance(column, CollectedColumn) else ()
