"""The steps of column expressions. The generated loop contains their code inline, instead of a call.

    sdf["total"] = sdf["price"] * sdf["n"]     value['total'] = (value['price'] * value['n'])
    sdf = sdf[sdf["total"] > 100]              if (value['total'] > 100):
    sdf = sdf[["user", "total"]]               value_9 = {'user': value['user'], 'total': value['total']}

A step that changes the value object changes it in place. Other branches get their own copy (``steps.in_place``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.expressions.constants import Named, fresh, fresh_code, text_of
from holdfast.processors.engine.expressions.failures import failure_in, missing, not_an_object, unfit
from holdfast.processors.engine.expressions.tree import Expression, Failed
from holdfast.processors.engine.steps.in_place import Touch, copied
from holdfast.processors.engine.steps.step import UNFIT, Inlined, Step


class RunWriter(Protocol):
    """Writes the code of steps that are computed for many messages at once (module ``of_runs``)."""

    def keep(self, condition: Expression) -> None:
        """Writes a filter. Later steps get only the messages for which the condition is true."""

    def assign(self, name: str, to: Expression) -> None:
        """Writes an assignment of the result of the expression ``to`` to the column ``name``."""

    def project(self, names: Sequence[str]) -> None:
        """Writes code that removes all columns except ``names``. A message without one of them fails."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStep(Step):
    """Base class of steps that consist of column expressions. The generated loop contains their code inline."""

    @property
    def text(self) -> str:
        """The step as code, for example ``sdf[(sdf['total'] > 100)]``."""
        raise NotImplementedError  # each subclass defines this property

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The expressions that the step computes from a message's value, in this order."""
        return ()

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions inside the step's expressions."""
        return tuple(function for each in self.expressions for function in each.functions)

    @property
    def stands_in_order(self) -> bool:
        """Returns True: the version hash contains the step's position.

        The position is needed, because the step's text does not show the steps before it.
        """
        return True

    def describe(self) -> str:
        """The step as code. The version hash contains this text, so a changed text changes the version."""
        return self.text

    @property
    def __name__(self) -> str:
        """The step as code; errors use it as the step's name."""
        return self.text

    def __call__(self, value: Any) -> Any:
        """Computes the step with Python's operators, as the plain loop does. Raises the same errors as ``fail``."""
        try:
            return self._run(value)
        except Failed as failed:
            raise self.failure(value, failed.error) from failed.error

    def fail(self, value: Any, error: BaseException) -> NoReturn:
        """Raises the error of a message for which the generated code raised ``error``.

        The generated exception handler calls it.

        Raises:
            ColumnMissing: The value lacks a column.
            ColumnUnfit: A part of the value has the wrong type.
            Exception: The error that a user function raised.
        """
        raised = error.__traceback__
        if raised is not None and raised.tb_next is not None:
            raise error  # a deeper traceback shows that a user function raised the error
        raise self.failure(value, error) from error

    def write_run(self, writer: RunWriter) -> None:
        """Writes the step's code for many messages at once. It may be called only if ``in_runs`` is True."""
        raise NotImplementedError  # each subclass defines this method

    def failure(self, value: Any, error: BaseException) -> HoldfastError:
        """Returns the error for a value for which the step failed."""
        for each in self.expressions:
            found = failure_in(each, value, self.text)
            if found is not None:
                return found
        return self._own_failure(value, error) if isinstance(value, dict) else not_an_object(value, self.text)

    def _own_failure(self, value: Any, error: BaseException) -> HoldfastError:
        return unfit(error, self.text)

    def _run(self, value: Any) -> Any:
        raise NotImplementedError  # each subclass defines this method


@dataclass(frozen=True, slots=True, eq=False)
class KeptWhere(ColumnStep):
    """The step ``sdf[condition]``: keeps the messages for which the condition is true."""

    in_runs: ClassVar[bool] = True
    condition: Expression

    @property
    def text(self) -> str:
        """The step as code, for example ``sdf[(sdf['total'] > 100)]``."""
        return f"sdf[{self.condition.text}]"

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """A tuple with the step's one expression: the condition."""
        return (self.condition,)

    def inlined(self, value: str, named: Named) -> Inlined:
        """Returns the condition as code for the generated loop."""
        return Inlined((), self.condition.code(value, named))

    def write_run(self, writer: RunWriter) -> None:
        """Writes the condition as a filter."""
        writer.keep(self.condition)

    def _run(self, value: Any) -> Any:
        return self.condition.evaluate(value)


@dataclass(frozen=True, slots=True, eq=False)
class Projection(ColumnStep):
    """The step ``sdf[["a", "b"]]``: a new object that has only these columns."""

    in_runs: ClassVar[bool] = True
    columns: tuple[tuple[str, Expression], ...]

    @property
    def makes_object(self) -> bool:
        """Returns True, because the result is a new object for each message."""
        return True

    @property
    def text(self) -> str:
        """The step as code, for example ``sdf[['a', 'b']]``."""
        return f"sdf[{text_of([name for name, _ in self.columns])}]"

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The expressions that compute the columns."""
        return tuple(each for _, each in self.columns)

    def inlined(self, value: str, named: Named) -> Inlined:
        """Returns the code that makes the new object."""
        return Inlined((), f"{{{', '.join(f'{name!r}: {each.code(value, named)}' for name, each in self.columns)}}}")

    def write_run(self, writer: RunWriter) -> None:
        """Writes code that removes all other columns."""
        writer.project([name for name, _ in self.columns])

    def _run(self, value: Any) -> Any:
        return {name: each.evaluate(value) for name, each in self.columns}


@dataclass(frozen=True, slots=True, eq=False)
class _Changed(ColumnStep):
    """Base class of steps that set, remove or rename fields of the value, but change nothing inside a field."""

    @property
    def touches(self) -> Touch:
        """Declares that the step changes only the fields of the value object, not the objects inside the fields.

        Changes by a user function that the step calls are not included.
        """
        return Touch.OBJECT

    def _run(self, value: Any) -> Any:
        try:
            self._change(value)
        except UNFIT as error:
            raise Failed(error) from error

    def _change(self, value: Any) -> None:
        raise NotImplementedError  # each subclass defines this method


@dataclass(frozen=True, slots=True, eq=False)
class Assigned(_Changed):
    """The step ``sdf["a"] = expression``."""

    in_runs: ClassVar[bool] = True
    name: str
    to: Expression

    @property
    def text(self) -> str:
        """The step as code, for example ``sdf['a'] = (sdf['b'] * 2)``."""
        return f"sdf[{self.name!r}] = {self.to.text}"

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """A tuple with the step's one expression. The step assigns its result to the column."""
        return (self.to,)

    @property
    def may_share_parts(self) -> bool:
        """Whether the expression's result may be an object that is a part of the value."""
        return self.to.gives_parts

    def separate(self, value: Any) -> None:
        """Replaces the assigned column by a copy, so that it shares no object with the rest of the value."""
        value[self.name] = copied(value[self.name])

    def inlined(self, value: str, named: Named) -> Inlined:
        """Returns the assignment as code for the generated loop."""
        return Inlined((f"{value}[{self.name!r}] = {self.to.code(value, named)}",))

    def write_run(self, writer: RunWriter) -> None:
        """Writes the assignment."""
        writer.assign(self.name, self.to)

    def _run(self, value: Any) -> Any:
        made = self.to.evaluate(value)
        try:
            value[self.name] = made
        except UNFIT as error:
            raise Failed(error) from error


@dataclass(frozen=True, slots=True, eq=False)
class Filled(_Changed):
    """The step ``sdf.fill(a=0)``: sets columns that are missing or None to a constant."""

    values: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The step as code, for example ``sdf.fill(a=0)``."""
        return f"sdf.fill({', '.join(f'{name}={text_of(each)}' for name, each in self.values.items())})"

    def inlined(self, value: str, named: Named) -> Inlined:
        """Returns one ``if`` statement for each column, as code for the generated loop."""
        return Inlined(
            tuple(
                f"if {value}.get({name!r}) is None: {value}[{name!r}] = {fresh_code(each, named)}"
                for name, each in self.values.items()
            )
        )

    def _change(self, value: Any) -> None:
        for name, each in self.values.items():
            if value.get(name) is None:
                value[name] = fresh(each)


@dataclass(frozen=True, slots=True, eq=False)
class Dropped(_Changed):
    """The step ``sdf.drop("a")``: removes columns from the value."""

    names: tuple[str, ...]
    ignores: bool

    @property
    def text(self) -> str:
        """The step as code, for example ``sdf.drop(['a'])``."""
        how = ', errors="ignore"' if self.ignores else ""
        return f"sdf.drop({text_of([*self.names])}{how})"

    def inlined(self, value: str, named: Named) -> Inlined:
        """Returns the deletions as code for the generated loop."""
        if self.ignores:
            return Inlined(tuple(f"{value}.pop({name!r}, None)" for name in self.names))
        return Inlined(tuple(f"del {value}[{name!r}]" for name in self.names))

    def _change(self, value: Any) -> None:
        for name in self.names:
            if self.ignores:
                value.pop(name, None)
            else:
                del value[name]

    def _own_failure(self, value: Any, error: BaseException) -> HoldfastError:
        return _missing_of(self.names, value, error, self.text)


def _missing_of(names: Collection[str], value: Any, error: BaseException, step: str) -> HoldfastError:
    """Returns the error for a column that should be removed or renamed but does not exist."""
    name = error.args[0] if isinstance(error, KeyError) else None
    return missing(name, value, step) if isinstance(name, str) and name in names else unfit(error, step)


class _Taken(LookupError):
    """Raised if a column can't be renamed, because the value already has another column with the new name."""


@dataclass(frozen=True, slots=True, eq=False)
class Renamed(_Changed):
    """The step ``sdf.rename({"a": "b"})``: renames columns.

    In the value, the renamed columns come after all other columns.
    """

    names: Mapping[str, str]
    ignores: bool

    @property
    def text(self) -> str:
        """The step as code, for example ``sdf.rename({'a': 'b'})``."""
        how = ', errors="ignore"' if self.ignores else ""
        return f"sdf.rename({text_of(dict(self.names))}{how})"

    def inlined(self, value: str, named: Named) -> Inlined:
        """Returns a call of ``renamed`` as code. Only a call at run time can find out which columns the value has."""
        return Inlined((f"{named('renamed', renamed)}({value}, {named('names', self.names)}, {self.ignores})",))

    def fail(self, value: Any, error: BaseException) -> NoReturn:
        """Raises the step's error. ``error`` is Python's exception.

        No user function can have raised ``error``, so the traceback is not checked.
        """
        raise self.failure(value, error) from error

    def _change(self, value: Any) -> None:
        renamed(value, self.names, self.ignores)

    def _own_failure(self, value: Any, error: BaseException) -> HoldfastError:
        return _missing_of(self.names, value, error, self.text)


def renamed(value: Any, names: Mapping[str, str], ignores: bool) -> None:
    """Renames columns of ``value``, all at the same time. If it raises an error, the value is unchanged."""
    fields = value.keys()
    found = [name for name in names if name in fields or not ignores]
    for name in found:
        if name not in fields:
            raise KeyError(name)
        if names[name] in value and names[name] not in found:
            raise _Taken(f"the value has a column {names[name]!r} already")
    parts = [value.pop(name) for name in found]
    for name, part in zip(found, parts, strict=True):
        value[names[name]] = part
