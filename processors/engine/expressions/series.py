"""Columns of a stream, for example ``sdf["price"]``, and expressions that are computed from columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from holdfast.processors.engine.expressions.constants import kept_constant
from holdfast.processors.engine.expressions.failures import ColumnInvalid
from holdfast.processors.engine.expressions.tree import (
    DEPTH_MAX,
    Call,
    Constant,
    Expression,
    Field,
    Item,
    Logical,
    Operation,
    Slice,
    Unary,
)
from holdfast.processors.engine.steps.checked_arguments import check_step_function


class StreamingSeries:
    """A column of a stream, or an expression of columns. It is computed for each message.

    ``sdf["price"]`` returns a column. Operators and methods return further expressions: ``+ - * / // %``, comparisons,
    ``&``, ``|``, ``~``, and ``["field"]`` for a field inside a column. Assign an expression to a column, or filter the
    stream by it.
    """

    __slots__ = ("expression", "frame")
    __hash__ = object.__hash__

    def __init__(self, frame: Any, expression: Expression) -> None:
        if expression.depth > DEPTH_MAX:
            raise ColumnInvalid(
                f"An expression of columns is nested {expression.depth} deep; expected at most {DEPTH_MAX}.",
                action="Assign a part of it to a column first; or use `isin` in place of many comparisons.",
            )
        #: The stream to which the column belongs.
        self.frame = frame
        #: The tree of operations that computes the column from a message's value.
        self.expression = expression

    def apply(self, func: Callable[[Any], Any]) -> StreamingSeries:
        """Returns a column with the results of ``func``, which is called with this column's value.

        Args:
            func: A function of the column's value. It gets neither the state nor the message's other columns.

        Raises:
            StepInvalid: ``func`` is not a function of one argument.
        """
        check_step_function(func, "apply", stateful=False, metadata=False)
        return self._made(Call((self.expression,), func))

    def isin(self, other: Any) -> StreamingSeries:
        """Returns an expression: whether the column's value is in ``other`` (a list, a set, a text, or another column).

        Raises:
            ColumnInvalid: ``other`` does not support Python's operator ``in``.
        """
        if not isinstance(other, StreamingSeries) and not hasattr(type(other), "__contains__"):
            raise ColumnInvalid(
                f"`isin` got {other!r} of type {type(other).__name__}; expected a list, a set, a text or a column.",
                action='Write, for example, `sdf["status"].isin(["paid", "sent"])`.',
                seen=repr(other)[:80],
            )
        return self._operation("in", other)

    def contains(self, other: Any) -> StreamingSeries:
        """Returns an expression: whether the column's value (a text, a list or an object) contains ``other``."""
        return self._made(Operation((self._part(other), self.expression), "in"))

    def is_(self, other: Any) -> StreamingSeries:
        """Returns an expression: whether the column's value is the same object as ``other``, like Python's ``is``."""
        return self._operation("is", other)

    def isnot(self, other: Any) -> StreamingSeries:
        """Returns an expression: whether the column's value is another object than ``other`` (``is not``)."""
        return self._operation("is not", other)

    def isnull(self) -> StreamingSeries:
        """Returns an expression: whether the column's value is None.

        A message without the column fails; use ``sdf.contains`` to test whether the column exists.
        """
        return self._operation("is", None)

    def notnull(self) -> StreamingSeries:
        """Returns an expression: whether the column's value is not None. A message without the column fails."""
        return self._operation("is not", None)

    def abs(self) -> StreamingSeries:
        """Returns an expression: the absolute value of the column."""
        return self._made(Unary((self.expression,), "abs"))

    def _made(self, expression: Expression) -> StreamingSeries:
        return StreamingSeries(self.frame, expression)

    def _part(self, other: Any) -> Expression:
        return part_of(other, self.frame)

    def _operation(self, symbol: str, other: Any) -> StreamingSeries:
        return self._made(Operation((self.expression, self._part(other)), symbol))

    def _reflected(self, symbol: str, other: Any) -> StreamingSeries:
        return self._made(Operation((self._part(other), self.expression), symbol))

    def __getitem__(self, item: Any) -> StreamingSeries:
        if isinstance(item, slice):
            bounds = (item.start, item.stop, item.step)
            if all(each is None or type(each) is int for each in bounds):
                return self._made(Slice((self.expression,), item))
        elif type(item) in (str, int) or isinstance(item, StreamingSeries):
            made = Field if has_instances(self.frame) else Item
            return self._made(made((self.expression, self._part(item))))
        raise ColumnInvalid(
            f"`{self.expression.text}` got the item {item!r} of type {type(item).__name__}; expected a field's name, a "
            "number or a slice of numbers.",
            action='Write, for example, `sdf["user"]["name"]`, or `sdf["readings"][0]`.',
            seen=repr(item)[:80],
        )

    def __setitem__(self, item: Any, value: Any) -> NoReturn:
        raise ColumnInvalid(
            f"`{self.expression.text}[{item!r}]` can't be assigned: only a column of the message can.",
            action=f"Compute the whole column: `sdf[column] = {self.expression.text}.apply(function)`.",
        )

    def __add__(self, other: Any) -> StreamingSeries:
        return self._operation("+", other)

    def __radd__(self, other: Any) -> StreamingSeries:
        return self._reflected("+", other)

    def __sub__(self, other: Any) -> StreamingSeries:
        return self._operation("-", other)

    def __rsub__(self, other: Any) -> StreamingSeries:
        return self._reflected("-", other)

    def __mul__(self, other: Any) -> StreamingSeries:
        return self._operation("*", other)

    def __rmul__(self, other: Any) -> StreamingSeries:
        return self._reflected("*", other)

    def __truediv__(self, other: Any) -> StreamingSeries:
        return self._operation("/", other)

    def __rtruediv__(self, other: Any) -> StreamingSeries:
        return self._reflected("/", other)

    def __floordiv__(self, other: Any) -> StreamingSeries:
        return self._operation("//", other)

    def __rfloordiv__(self, other: Any) -> StreamingSeries:
        return self._reflected("//", other)

    def __mod__(self, other: Any) -> StreamingSeries:
        return self._operation("%", other)

    def __rmod__(self, other: Any) -> StreamingSeries:
        return self._reflected("%", other)

    def __eq__(self, other: Any) -> StreamingSeries:  # type: ignore[override]
        return self._operation("==", other)

    def __ne__(self, other: Any) -> StreamingSeries:  # type: ignore[override]
        return self._operation("!=", other)

    def __lt__(self, other: Any) -> StreamingSeries:
        return self._operation("<", other)

    def __le__(self, other: Any) -> StreamingSeries:
        return self._operation("<=", other)

    def __gt__(self, other: Any) -> StreamingSeries:
        return self._operation(">", other)

    def __ge__(self, other: Any) -> StreamingSeries:
        return self._operation(">=", other)

    def __and__(self, other: Any) -> StreamingSeries:
        return self._made(Logical((self.expression, self._part(other)), "and"))

    def __rand__(self, other: Any) -> StreamingSeries:
        return self._made(Logical((self._part(other), self.expression), "and"))

    def __or__(self, other: Any) -> StreamingSeries:
        return self._made(Logical((self.expression, self._part(other)), "or"))

    def __ror__(self, other: Any) -> StreamingSeries:
        return self._made(Logical((self._part(other), self.expression), "or"))

    def __invert__(self) -> StreamingSeries:
        return self._made(Unary((self.expression,), "~"))

    def __neg__(self) -> StreamingSeries:
        return self._made(Unary((self.expression,), "-"))

    def __abs__(self) -> StreamingSeries:
        return self.abs()

    def __bool__(self) -> bool:
        raise ColumnInvalid(
            f"`{self.expression.text}` has a truth value for each message only; `and`, `or`, `not`, `if` and chains "
            "such as `1 < x < 5` ask for one now.",
            action='Write `&`, `|` and `~`, with brackets: `sdf[(sdf["a"] > 1) & ~(sdf["b"] == 2)]`.',
        )

    def __iter__(self) -> Iterator[Any]:
        raise ColumnInvalid(
            f"`{self.expression.text}` has items for each message only; it can't be iterated now.",
            action=f"Compute with its items in a function: `{self.expression.text}.apply(function)`.",
        )

    def __len__(self) -> int:
        raise ColumnInvalid(
            f"`{self.expression.text}` has a length for each message only.",
            action=f"Write `{self.expression.text}.apply(len)`.",
        )

    def __contains__(self, item: Any) -> bool:
        raise ColumnInvalid(
            f"`in` asks now whether `{self.expression.text}` contains {item!r}; each message has its own answer.",
            action=f"Write `{self.expression.text}.contains({item!r})`.",
        )

    def __repr__(self) -> str:
        return f"<column {self.expression.text}>"


def has_instances(frame: Any) -> bool:
    """Whether values of the stream may be instances of a class. Columns are then attributes of the instances."""
    return bool(frame.has_instances)


def part_of(other: Any, frame: Any) -> Expression:
    """Converts a constant, or another column of the same stream, to a part of an expression.

    Raises:
        ColumnInvalid: The column belongs to another stream; or ``other`` is a stream or a function.
    """
    if isinstance(other, StreamingSeries):
        if other.frame is not frame:
            raise ColumnInvalid(
                f"`{other.expression.text}` is a column of another stream, or of the stream before a step that made a "
                "new one; expected columns of one stream.",
                action="Take all columns from the same variable: `sdf['a'] + sdf['b']`.",
            )
        return other.expression
    if callable(other) or type(other) is type(frame):
        raise ColumnInvalid(
            f"An expression of columns got {other!r} of type {type(other).__name__}; expected a constant or a column.",
            action='Write `sdf["column"].apply(function)` for a function of a column, or assign '
            "`sdf.apply(function)` to a column first.",
            seen=repr(other)[:80],
        )
    check_constant(other, frame, "An expression of columns")
    return Constant((), kept_constant(other))


def check_constant(given: Any, frame: Any, what: str) -> None:
    """Raises ColumnInvalid if a list, a tuple, a set or a dict has a column or a stream as a part."""
    column = next(_columns_in(given, frame), None)
    if column is None:
        return
    shown = repr(column) if isinstance(column, StreamingSeries) else f"a {type(column).__name__}"
    raise ColumnInvalid(
        f"{what} got a {type(given).__name__} that contains {shown}; expected a constant or a column.",
        action='Make the value in a function: `sdf["q"] = sdf.apply(lambda value: {"a": value["a"]})`.',
        seen=shown,
    )


def _columns_in(given: Any, frame: Any) -> Iterator[Any]:
    if isinstance(given, StreamingSeries) or type(given) is type(frame):
        yield given
    elif isinstance(given, (list, tuple, set, frozenset, dict)):
        for part in given.values() if isinstance(given, dict) else given:
            yield from _columns_in(part, frame)
