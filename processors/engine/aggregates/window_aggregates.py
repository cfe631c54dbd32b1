"""The columns of a window: the columns of the module ``aggregation``, and more columns that only windows can have.

The state of a window is one JSON value. ``aggregation`` describes its format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.processors.engine.aggregates.aggregation import (
    AGGREGATORS,
    FORMAT,
    FORMAT_VERSION,
    Aggregation,
    AggregationFailed,
    AggregationInvalid,
    Aggregator,
    Count,
    Max,
    Mean,
    Min,
    Sum,
    stored_columns,
)
from holdfast.processors.engine.aggregates.custom_columns import (
    CollectedColumn,
    CustomColumn,
    OfInstances,
    columns_of,
    methods_of,
)
from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.formats.typed import given_back, kept
from holdfast.processors.engine.steps.in_place import copied, may_change

_NOTHING: Mapping[str, Any] = {}
#: Exceptions that are not subclasses of Exception. If a user's function raises such an exception, the window fails, as
#: with any other exception.
_ENDING = (SystemExit, GeneratorExit)


class FailedResult(dict[str, Any]):
    """The result of a closing window if one of its columns raised an error. It replaces the normal result.

    The dict has the window's start and end, and the error.
    """

    def __init__(self, start: int, end: int, error: BaseException) -> None:
        super().__init__(start=start, end=end)
        self.error = error

    def __deepcopy__(self, memo: object) -> FailedResult:
        """Returns the object itself. No step gets it, so no step can change it; and its error may not allow a copy."""
        return self


@dataclass(frozen=True, slots=True)
class First(Aggregator):
    """The value of a field in the first processed message of a window. The value may have any type."""

    kind: ClassVar[str] = "first"

    def add(self, held: Any, item: Any, column: str) -> Any:
        """Returns the stored value: a list with the first item. The item is inside a list, because it may be None."""
        return [item] if held is None else held

    def merge(self, earlier: Any, later: Any, column: str) -> Any:
        """Returns the stored value of the earlier session."""
        return earlier

    def result(self, held: Any, column: str) -> Any:
        """Returns the item, without the list in which it is stored."""
        return held[0]


class _ByTime(Aggregator):
    """Base class of ``Earliest`` and ``Latest``. ``wins`` says whether the new item replaces the stored item."""

    __slots__ = ()
    wins: ClassVar[Callable[[int, int], bool]]

    @property
    def by_time(self) -> bool:
        return True

    def add(self, held: Any, item: Any, column: str) -> Any:
        return item if held is None or type(self).wins(item[0], held[0]) else held

    def merge(self, earlier: Any, later: Any, column: str) -> Any:
        return self.add(earlier, later, column)

    def result(self, held: Any, column: str) -> Any:
        return held[1]


@dataclass(frozen=True, slots=True)
class Earliest(_ByTime):
    """The value of a field in the message with the smallest event time.

    If several messages have this event time, the message that was processed first is used.
    """

    kind: ClassVar[str] = "earliest"
    wins: ClassVar[Callable[[int, int], bool]] = staticmethod(lambda new, held: new < held)


@dataclass(frozen=True, slots=True)
class Latest(_ByTime):
    """The value of a field in the message with the largest event time.

    If several messages have this event time, the message that was processed last is used.
    """

    kind: ClassVar[str] = "latest"
    wins: ClassVar[Callable[[int, int], bool]] = staticmethod(lambda new, held: new >= held)


@dataclass(frozen=True, slots=True)
class Collect(Aggregator):
    """All values of a field, in processing order. For each message, the whole list is written to the store again."""

    kind: ClassVar[str] = "items"

    def add(self, held: Any, item: Any, column: str) -> list[Any]:
        """Returns the list with the new item."""
        return [*(held or ()), item]

    def merge(self, earlier: Any, later: Any, column: str) -> list[Any]:
        """Returns the items of the earlier session, followed by those of the later session."""
        return [*earlier, *later]


@dataclass(frozen=True, slots=True)
class Reduce(Aggregator):
    """A value that user functions compute, for example ``Reduce(reducer, initializer)``. It is stored as JSON.

    The functions must depend only on their arguments, because they are called again if a message of their batch fails.

    Args:
        reducer: Returns the new value, from the previous value and a message's value.
        initializer: Returns the first value, from a message's value.
        merger: Returns one value from the values of two sessions, earlier session first, if a message connects them.
            Only session windows need it.
        subtractor: Returns the value without a row, from the value with the row and the row. Only groups of the rows of
            a table need it.

    Raises:
        AggregationInvalid: An argument is not a function.
    """

    kind: ClassVar[str] = "reduce"
    of: None = None
    reducer: Callable[[Any, Any], Any] | None = None
    initializer: Callable[[Any], Any] | None = None
    merger: Callable[[Any, Any], Any] | None = None
    subtractor: Callable[[Any, Any], Any] | None = None

    def __init__(
        self,
        reducer: Callable[[Any, Any], Any] | None = None,
        initializer: Callable[[Any], Any] | None = None,
        merger: Callable[[Any, Any], Any] | None = None,
        subtractor: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        given = {"reducer": reducer, "initializer": initializer, "merger": merger, "subtractor": subtractor}
        for name, made in given.items():
            if not callable(made) and not (made is None and name in ("merger", "subtractor")):
                raise AggregationInvalid(
                    f"Reduce got the {name} {made!r}, expected a function.",
                    action="Write, for example, `Reduce(reducer=lambda total, value: total + value, "
                    "initializer=lambda value: value)`.",
                )
            object.__setattr__(self, name, made)
        object.__setattr__(self, "of", None)

    def add(self, held: Any, item: Any, column: str) -> Any:
        """Returns a list with the reduced value as its only item, because the value itself may be None."""
        assert self.reducer is not None
        assert self.initializer is not None
        return [self.initializer(item) if held is None else self.reducer(held[0], item)]

    def merge(self, earlier: Any, later: Any, column: str) -> Any:
        """Merges two reduced values with the user's ``merger``."""
        assert self.merger is not None
        return [self.merger(earlier[0], later[0])]

    @property
    def merges(self) -> bool:
        """Whether the declaration has a ``merger``."""
        return self.merger is not None

    def result(self, held: Any, column: str) -> Any:
        """Returns the reduced value, without the list in which it is stored."""
        return held[0]

    def describe(self) -> str:
        """The column as text, for example ``reduce(add)``."""
        return f"{self.kind}({getattr(self.reducer, '__qualname__', '')})"


#: The classes of columns that a window allows. This module's ``Collect`` keeps all items; the class ``Collect`` of
#: ``aggregation`` keeps only the newest items.
WINDOW_AGGREGATORS: tuple[type[Aggregator], ...] = (
    *AGGREGATORS.values(),
    *(First, Earliest, Latest, Collect, Reduce, CustomColumn, CollectedColumn),
)


#: Aggregators whose stored values are only finite numbers and texts.
_PLAIN = frozenset(made.kind for made in (Count, Sum, Mean, Min, Max))


class WindowAggregation(Aggregation):
    """The columns of one window."""

    aggregators = WINDOW_AGGREGATORS
    expected = (
        "one of " + ", ".join(dict.fromkeys(each.__name__ for each in WINDOW_AGGREGATORS[:-2])) + ", or an object of a "
        "subclass of `Aggregator` or `Collector`"
    )
    written = 'agg(total=Sum("amount"))'

    def __init__(self, columns: Mapping[str, Any], *, alone: bool = False) -> None:
        super().__init__(columns_of(columns))
        #: Whether the window has one column, declared by a method such as ``sum()``. False if ``agg()`` declared the
        #: columns.
        self.alone = alone
        #: Whether one of the users' functions may change its argument.
        self.in_place = any(map(may_change, self.functions))
        #: The columns as they are called, with those of ``take_instances``.
        self._called: dict[str, Aggregator | OfInstances] = dict(self.columns)
        self._folds = self._in_order()
        for taken in sorted({"start", "end"} & set(columns)):
            raise AggregationInvalid(
                f"A column of a window has the name {taken!r}, which the window's own {taken} has.",
                action="Give the column another name in `agg`.",
                column=taken,
            )

    def _in_order(self) -> list[tuple[str, str, Aggregator | OfInstances, bool]]:
        """For each column: its name, the aggregator's name, the column as it is called, and whether it takes times."""
        return [(name, made.kind, self._called[name], made.by_time) for name, made in self.columns.items()]

    def take_instances(self, kind: Any) -> None:
        """Says that the messages are instances of ``kind``.

        User functions that get whole messages then get instances, not the JSON form in which columns keep messages.
        """
        row, keep = given_back(kind), kept(kind)
        for name, made in self.columns.items():
            if isinstance(made, (Reduce, CustomColumn, CollectedColumn)) and made.of is None:
                self._called[name] = OfInstances(made, row, keep)
        self._folds = self._in_order()

    @property
    def plain(self) -> bool:
        """Whether all stored values are only finite numbers and texts."""
        return _PLAIN.issuperset(made.kind for made in self.columns.values())

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the columns."""
        reduces = [made for made in self.columns.values() if isinstance(made, Reduce)]
        asked = [each for made in reduces for each in (made.reducer, made.initializer, made.merger)]
        given = [each for each in asked if each is not None]
        custom = [each for made in self.columns.values() for each in methods_of(made)]
        return (*super().functions, *given, *custom)

    def folded(self, held: Any, value: Any, time_ms: int) -> dict[str, Any]:
        """Returns the stored value of a window after one more message. ``held`` is None for a new window.

        Raises:
            AggregationFailed: The message can't be aggregated.
            FormatUnknown: The stored aggregates have another format version.
        """
        columns = stored_columns(held)
        stored: dict[str, Any] = {FORMAT: FORMAT_VERSION}
        for name, kind, made, by_time in self._folds:
            item = made.read(value, name)
            if by_time:
                item = [time_ms, item]
            part = columns.get(kind)
            added = made.add(None if part is None else part.get(name), item, name)
            if kind in stored:
                stored[kind][name] = added
            else:
                stored[kind] = {name: added}
        return stored

    def seen(self, stored: Any) -> Any:
        """Returns the current result of an open window, for the user functions ``before_update`` and ``after_update``.

        These functions decide whether the result is sent early. For a window with ``agg``, they get a dict of all
        columns. For a window with a method such as ``sum()``, they get the value of its only column.
        """
        made = self.result(0, 0, stored)
        return made["value"] if self.alone else {name: made[name] for name in self.columns}

    def read(self, value: Any) -> dict[str, Any]:
        """Reads the items of all columns from a message. Returns them by column name; ``count`` columns are left out.

        Raises:
            AggregationFailed: The message can't be aggregated.
        """
        return {
            name: made.keep(value) if isinstance(made, OfInstances) else made.read(value, name)
            for name, made in self._called.items()
            if not isinstance(made, Count)
        }

    def computed(self, start: int, end: int, items: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
        """Computes a window's result from its messages: pairs of event time and the items that ``read`` returned.

        Returns the same dict as ``result``.

        Raises:
            AggregationFailed: The messages can't be aggregated together.
        """
        return self._computed(start, end, self._folded_items(items))

    def computed_due(
        self, start: int, end: int, items: Sequence[tuple[int, Mapping[str, Any]]], *, closes: bool
    ) -> dict[str, Any]:
        """Returns the same dict as ``computed``, or a ``FailedResult`` with the error of a column.

        If ``closes`` is True, the current message closes the window, but all messages of the window were processed
        before. The current message must not fail, so every error becomes a ``FailedResult``.

        If ``closes`` is False, the current message is in the window. If the messages can't be aggregated, the error is
        raised, and the current message fails. An error of a user's function that makes a column's result becomes a
        ``FailedResult``.
        """
        try:
            folded = self._folded_items(items)
            try:
                return self._computed(start, end, folded)
            except AggregationFailed:
                raise
            except (Exception, *_ENDING) as error:
                return FailedResult(start, end, error)
        except (Exception, *_ENDING) as error:
            if not closes:
                raise
            return FailedResult(start, end, error)

    def _folded_items(self, items: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
        folded = dict[str, Any]()
        for name, made in self.columns.items():
            held: Any = None
            for time_ms, item in items:
                if isinstance(made, Count):
                    held = made.add(held, None, name)
                elif name in item:
                    read = copied(item[name]) if self.in_place else item[name]
                    held = self._called[name].add(held, [time_ms, read] if made.by_time else read, name)
            folded[name] = held
        return folded

    def _computed(self, start: int, end: int, folded: Mapping[str, Any]) -> dict[str, Any]:
        results = {
            name: None if held is None else self._called[name].result(held, name) for name, held in folded.items()
        }
        return {"start": start, "end": end, **results}

    def check_merges(self) -> None:
        """Raises AggregationInvalid if a column can't merge the states of two sessions, as session windows require."""
        for name, made in self.columns.items():
            if not made.merges:
                raise AggregationInvalid(
                    f"Column {name!r} is {made.describe()}, which can't merge: a message between two sessions "
                    "makes one of them.",
                    action="Give `reduce` a `merger`, for example `merger=lambda earlier, later: earlier + later`. A "
                    "column class of yours needs a method `merge`.",
                    column=name,
                )

    def merged(self, earlier: Any, later: Any) -> dict[str, Any]:
        """Merges the stored values of two session windows, when a message connects the two windows.

        All event times of ``earlier`` are before those of ``later``.

        Raises:
            AggregationFailed: The values of a column can't be merged.
        """
        first, second = stored_columns(earlier), stored_columns(later)
        stored: dict[str, Any] = {FORMAT: FORMAT_VERSION}
        for name, made in self.columns.items():
            parts = [columns.get(made.kind, _NOTHING).get(name) for columns in (first, second)]
            there = [part for part in parts if part is not None]
            if there:
                stored.setdefault(made.kind, {})[name] = (
                    there[0] if len(there) == 1 else made.merge(there[0], there[1], name)
                )
        return stored

    def due(self, start: int, end: int, stored: Any) -> dict[str, Any]:
        """Returns the result of a window that closes, or a ``FailedResult`` with the error of a column.

        The error is not raised, because it would fail the message that is being processed. That message only closes the
        window, whose content comes from earlier messages.
        """
        try:
            return self.result(start, end, stored)
        except FormatUnknown:
            # The stored state has an unknown format, so the worker must stop. A ``FailedResult`` would fail only this
            # window.
            raise
        except (Exception, *_ENDING) as error:
            return FailedResult(start, end, error)

    def result(self, start: int, end: int, stored: Any) -> dict[str, Any]:
        """Returns a window's result: start, end, and all columns. A column without any message is None."""
        columns = stored_columns(stored)
        made: dict[str, Any] = {"start": start, "end": end}
        for name, kind, column, _ in self._folds:
            part = columns.get(kind)
            held = None if part is None else part.get(name)
            made[name] = None if held is None else column.result(held, name)
        return made
