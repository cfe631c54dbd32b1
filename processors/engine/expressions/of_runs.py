"""Computes column expressions for many consecutive messages (a run), if an aggregation or window with numpy follows.

    fields of the messages, as lists          the code for each message            what the columns need
    amount  [3, 900, 501] ──┐                 if not (field_0 > 500): continue     kept    [1, 2]
    state   ["a", "b", "c"] ─┘                made_1 = (field_0 * 2)               double  [1800, 1002]

The code applies Python's operators to one message after the other, so its results are exactly those of the plain loop.
The code is faster, because only the needed fields are decoded, and because the generated loop does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from holdfast.processors.engine.expressions.steps import ColumnStep
from holdfast.processors.engine.expressions.tree import VALUE, Constant, Expression, HasFields, Item, Logical, Operation
from holdfast.processors.engine.steps.node import Node

#: These operators raise no error for the object that stands for a missing field. The generated code must therefore
#: check for a missing field itself.
_TAKE_ALL = frozenset(("is", "is not", "in", "%"))


class NoRuns(Exception):
    """The steps can't be computed for many messages at once; they must be processed one message at a time."""


@dataclass(frozen=True, eq=False)
class _Local(Expression):
    """An expression that stands for a variable of the generated function."""

    name: str = ""

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        raise NotImplementedError  # The variable exists only in generated code, so this method is never called.

    def _code(self, value: str, operands: Sequence[str], named: Callable[[str, Any], str]) -> str:
        return self.name

    def _text(self, operands: Sequence[str]) -> str:
        return self.name


def steps_before(source: Node) -> tuple[tuple[ColumnStep, ...], Node | None]:
    """Returns the column expressions at the beginning of a stream, and the step after them.

    If no step follows, or several branches follow, None is returned instead of the step.
    """
    steps, node = list[ColumnStep](), source
    while True:
        if len(node.children) != 1:
            return tuple(steps), None
        [node] = node.children
        if node.of_engine is None or not node.of_engine.in_runs:
            return tuple(steps), node
        steps.append(cast(ColumnStep, node.of_engine))


@dataclass(slots=True)
class _Writer:
    """Writes the code of a function that computes the steps for many messages."""

    fields: list[str] = field(default_factory=list)
    #: Fields that each message must have. They must be checked first, because the generated code raises no error if
    #: such a field is missing.
    asked: set[str] = field(default_factory=set)
    #: Maps each column to its variable at the present line of the code. A column without an entry is a field of the
    #: message.
    columns: dict[str, str] = field(default_factory=dict)
    #: Whether ``columns`` has all columns that exist, because a projection (``sdf[["a", "b"]]``) has removed all other
    #: columns.
    closed: bool = False
    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)

    def variable(self, column: str) -> str:
        """Returns the name of the variable that has the column's value.

        Raises:
            NoRuns: A projection (``sdf[["a", "b"]]``) has removed the column.
        """
        if column not in self.columns:
            if self.closed:
                raise NoRuns
            self.columns[column] = f"field_{len(self.fields)}"
            self.fields.append(column)
        return self.columns[column]

    def keep(self, condition: Expression) -> None:
        """Writes a filter: messages for which the condition is not true are left out."""
        self.lines.append(f"if not {self.code(condition)}: continue")

    def assign(self, name: str, to: Expression) -> None:
        """Writes an assignment. Later code uses the assigned variable as the column."""
        self._ask_if_returned(to)
        made = f"made_{len(self.lines)}"
        self.lines.append(f"{made} = {self.code(to)}")
        self.columns[name] = made

    def project(self, names: Sequence[str]) -> None:
        """Removes all columns except ``names``. Code that is written later can't read the removed columns."""
        for name in names:
            self._ask(name)
        self.columns, self.closed = {name: self.columns[name] for name in names}, True

    def code(self, expression: Expression) -> str:
        """Returns Python code that computes an expression from the columns, as they are at this line of the code."""
        return self._local(expression).code("value", self._named)

    def _named(self, kind: str, thing: Any) -> str:
        name = f"{kind}_{len(self.names)}"
        self.names[name] = thing
        return name

    def _local(self, part: Expression) -> Expression:
        if isinstance(part, HasFields):
            for name in part.names:
                self._ask(name)
            return Constant((), of=True)
        if isinstance(part, Item) and part.parts[0] is VALUE and isinstance(part.parts[1], Constant):
            return _Local((), self.variable(part.parts[1].of))
        if isinstance(part, Operation) and part.symbol in _TAKE_ALL:
            self._ask_columns(part.parts)
        return replace(part, parts=tuple(map(self._local, part.parts)))

    def _ask_if_returned(self, part: Expression) -> None:
        """Marks columns as required, if the expression may return such a column's value unchanged.

        Without the mark, the expression would return the object that stands for a missing field, and raise no error.
        """
        self._ask_columns((part,))
        if isinstance(part, Logical):
            for each in part.parts:
                self._ask_if_returned(each)

    def _ask_columns(self, parts: Sequence[Expression]) -> None:
        for each in parts:
            if isinstance(each, Item) and each.parts[0] is VALUE and isinstance(each.parts[1], Constant):
                self._ask(each.parts[1].of)

    def _ask(self, column: str) -> None:
        if self.variable(column).startswith("field_"):
            self.asked.add(column)


@dataclass(frozen=True, slots=True)
class RunSteps:
    """Column expressions of a stream, compiled to one function for many consecutive messages.

    Attributes:
        fields: The names of the message fields that the function reads.
        asked: The fields that each message must have. If a message lacks one, the plain loop must process the messages.
        run: The function. It takes the lists of the fields' values and the number of messages. It returns the indexes
            of the messages that pass the filters, and the lists of the needed columns.
    """

    fields: tuple[str, ...]
    asked: frozenset[str]
    run: Callable[[Sequence[Sequence[Any]], int], tuple[list[int], list[list[Any]]]]


def run_steps(steps: Sequence[ColumnStep], needed: Sequence[str]) -> RunSteps:
    """Compiles steps to one function for many messages. The function returns the columns ``needed``.

    Raises:
        NoRuns: A step calls a user function, or the steps remove a needed column.
    """
    if any(each.functions for each in steps):
        # If numpy can't compute the run (consecutive messages), its messages are processed again one by one. The user
        # function would then be called twice.
        raise NoRuns
    writer = _Writer()
    for step in steps:
        step.write_run(writer)
    columns = [writer.variable(name) for name in needed]
    return RunSteps(tuple(writer.fields), frozenset(writer.asked), _compiled(writer, columns))


def _compiled(writer: _Writer, columns: Sequence[str]) -> Any:
    fields = "".join(f", field_{number}" for number in range(len(writer.fields)))
    lists = [f"list_{number}" for number in range(len(columns))]
    text = "\n".join(
        [
            "def run(fields, count):",
            " kept = []; keep = kept.append",
            *(f" {each} = []; add_{each} = {each}.append" for each in lists),
            f" for index{fields or ','} in zip(range(count), *fields):",
            *(f"  {line}" for line in writer.lines),
            "  keep(index)",
            *(f"  add_{each}({variable})" for each, variable in zip(lists, columns, strict=True)),
            f" return kept, [{', '.join(lists)}]",
        ]
    )
    names: Mapping[str, Any] = {**writer.names}
    # The executed code is the text above, which was generated from the steps.
    exec(compile(text, "<columns of a run>", "exec"), names)  # type: ignore[arg-type] # noqa: S102 # nosec B102
    return names["run"]
