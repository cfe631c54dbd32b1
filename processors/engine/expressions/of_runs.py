"""Column expressions before an aggregation or a window that is computed by columns: they are computed for a whole run.

    fields of the messages, as lists          the code for each message            what the columns need
    amount  [3, 900, 501] ──┐                 if not (field_0 > 500): continue     kept    [1, 2]
    state   ["a", "b", "c"] ─┘                made_1 = (field_0 * 2)               double  [1800, 1002]

The operators are Python's, message by message, so that results are those of the plain loop to the bit. The gain is that
only the needed fields are decoded, and that no step of the loop runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from holdfast.processors.engine.expressions.steps import ColumnStep
from holdfast.processors.engine.expressions.tree import VALUE, Constant, Expression, HasFields, Item, Logical, Operation
from holdfast.processors.engine.steps.node import Node

#: Operators that take a missing field without an error.
_TAKE_ALL = frozenset(("is", "is not", "in", "%"))


class NoRuns(Exception):
    """The steps have no form for whole runs."""


@dataclass(frozen=True, eq=False)
class _Local(Expression):
    """A variable of the generated code."""

    name: str = ""

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        raise NotImplementedError  # it is code only

    def _code(self, value: str, operands: Sequence[str], named: Callable[[str, Any], str]) -> str:
        return self.name

    def _text(self, operands: Sequence[str]) -> str:
        return self.name


def steps_before(source: Node) -> tuple[tuple[ColumnStep, ...], Node | None]:
    """The column expressions that come first in a stream, and the one step behind them; None for none or several."""
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
    """Writes the function of a run."""

    fields: list[str] = field(default_factory=list)
    #: The fields for which nothing else would show that a message lacks them.
    asked: set[str] = field(default_factory=set)
    #: By column, its variable at this place; a field of the message that is not there is read.
    columns: dict[str, str] = field(default_factory=dict)
    #: Whether only the columns of ``columns`` are there.
    closed: bool = False
    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)

    def variable(self, column: str) -> str:
        """The variable of a column.

        Raises:
            NoRuns: A projection has taken the column out.
        """
        if column not in self.columns:
            if self.closed:
                raise NoRuns
            self.columns[column] = f"field_{len(self.fields)}"
            self.fields.append(column)
        return self.columns[column]

    def keep(self, condition: Expression) -> None:
        """A message without a true condition is left out."""
        self.lines.append(f"if not {self.code(condition)}: continue")

    def assign(self, name: str, to: Expression) -> None:
        """A column is a variable from here on."""
        self._ask_if_returned(to)
        made = f"made_{len(self.lines)}"
        self.lines.append(f"{made} = {self.code(to)}")
        self.columns[name] = made

    def project(self, names: Sequence[str]) -> None:
        """Only these columns are there from here on."""
        for name in names:
            self._ask(name)
        self.columns, self.closed = {name: self.columns[name] for name in names}, True

    def code(self, expression: Expression) -> str:
        """The code of an expression of the present columns."""
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
        """Asks for the columns that may be the result of an expression as they are."""
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
    """Steps as a function of a run.

    Attributes:
        fields: The fields of the messages that it reads.
        asked: The fields of which each message must have one; else the plain loop processes the run.
        run: From the lists of the fields and the number of messages: the indexes of the messages that are kept, and the
            lists of the needed columns.
    """

    fields: tuple[str, ...]
    asked: frozenset[str]
    run: Callable[[Sequence[Sequence[Any]], int], tuple[list[int], list[list[Any]]]]


def run_steps(steps: Sequence[ColumnStep], needed: Sequence[str]) -> RunSteps:
    """The steps as a function of a run, which gives the columns ``needed``.

    Raises:
        NoRuns: A step calls a function of a user, or a needed column is not there behind the steps.
    """
    if any(each.functions for each in steps):
        raise NoRuns  # a run that can't be computed is processed again, and would call it again
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
    exec(compile(text, "<columns of a run>", "exec"), names)  # type: ignore[arg-type] # noqa: S102 # nosec B102: our own text
    return names["run"]
