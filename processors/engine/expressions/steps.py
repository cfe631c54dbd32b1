"""The steps of column expressions. The generated loop has their code in place of a call.

    sdf["total"] = sdf["price"] * sdf["n"]     value['total'] = (value['price'] * value['n'])
    sdf = sdf[sdf["total"] > 100]              if (value['total'] > 100):
    sdf = sdf[["user", "total"]]               value_9 = {'user': value['user'], 'total': value['total']}

A step that changes an object changes it in place. Branches before it keep their own object (``steps.in_place``).
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
    """Writes the code of steps for a run of messages (``of_runs``)."""

    def keep(self, condition: Expression) -> None:
        """The later steps get the messages for which the condition is true."""

    def assign(self, name: str, to: Expression) -> None:
        """A column gets the value of an expression."""

    def project(self, names: Sequence[str]) -> None:
        """Only these columns are left; a message without one of them fails."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStep(Step):
    """A step that the generated loop computes without a call."""

    @property
    def text(self) -> str:
        """The step as it was written."""
        raise NotImplementedError

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """What it computes from the value, in this order."""
        return ()

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions of users inside its expressions."""
        return tuple(function for each in self.expressions for function in each.functions)

    @property
    def stands_in_order(self) -> bool:
        """Its text alone does not tell which steps come before it."""
        return True

    def describe(self) -> str:
        """The step as it was written: another text is another version."""
        return self.text

    @property
    def __name__(self) -> str:
        """The step's name in errors."""
        return self.text

    def __call__(self, value: Any) -> Any:
        """The step by Python's operators, for the plain loop; raises as ``fail``."""
        try:
            return self._run(value)
        except Failed as failed:
            raise self.failure(value, failed.error) from failed.error

    def fail(self, value: Any, error: BaseException) -> NoReturn:
        """Raises the failure of a message whose code raised ``error``; the handler of the exception calls it.

        Raises:
            ColumnMissing: The value lacks a column.
            ColumnUnfit: The value does not fit.
            Exception: What a function of a user raised.
        """
        raised = error.__traceback__
        if raised is not None and raised.tb_next is not None:
            raise error  # of a function of a user
        raise self.failure(value, error) from error

    def write_run(self, writer: RunWriter) -> None:
        """Writes the step for a run of messages; only called if ``in_runs``."""
        raise NotImplementedError

    def failure(self, value: Any, error: BaseException) -> HoldfastError:
        """The error for a value that the step can't take."""
        for each in self.expressions:
            found = failure_in(each, value, self.text)
            if found is not None:
                return found
        return self._own_failure(value, error) if isinstance(value, dict) else not_an_object(value, self.text)

    def _own_failure(self, value: Any, error: BaseException) -> HoldfastError:
        return unfit(error, self.text)

    def _run(self, value: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class KeptWhere(ColumnStep):
    """``sdf[condition]``: keeps the messages for which the expression is true."""

    in_runs: ClassVar[bool] = True
    condition: Expression

    @property
    def text(self) -> str:
        """The step as it was written."""
        return f"sdf[{self.condition.text}]"

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The condition."""
        return (self.condition,)

    def inlined(self, value: str, named: Named) -> Inlined:
        """The condition as code."""
        return Inlined((), self.condition.code(value, named))

    def write_run(self, writer: RunWriter) -> None:
        """A condition."""
        writer.keep(self.condition)

    def _run(self, value: Any) -> Any:
        return self.condition.evaluate(value)


@dataclass(frozen=True, slots=True, eq=False)
class Projection(ColumnStep):
    """``sdf[["a", "b"]]``: a new object with these columns only."""

    in_runs: ClassVar[bool] = True
    columns: tuple[tuple[str, Expression], ...]

    @property
    def makes_object(self) -> bool:
        """Each result is an object of its own."""
        return True

    @property
    def text(self) -> str:
        """The step as it was written."""
        return f"sdf[{text_of([name for name, _ in self.columns])}]"

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The columns."""
        return tuple(each for _, each in self.columns)

    def inlined(self, value: str, named: Named) -> Inlined:
        """The new object as code."""
        return Inlined((), f"{{{', '.join(f'{name!r}: {each.code(value, named)}' for name, each in self.columns)}}}")

    def write_run(self, writer: RunWriter) -> None:
        """The names that are left."""
        writer.project([name for name, _ in self.columns])

    def _run(self, value: Any) -> Any:
        return {name: each.evaluate(value) for name, each in self.columns}


@dataclass(frozen=True, slots=True, eq=False)
class _Changed(ColumnStep):
    """A step that changes the fields of an object, and nothing inside of them."""

    @property
    def touches(self) -> Touch:
        """It changes the object itself, if no function inside changes more."""
        return Touch.OBJECT

    def _run(self, value: Any) -> Any:
        try:
            self._change(value)
        except UNFIT as error:
            raise Failed(error) from error

    def _change(self, value: Any) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Assigned(_Changed):
    """``sdf["a"] = expression``."""

    in_runs: ClassVar[bool] = True
    name: str
    to: Expression

    @property
    def text(self) -> str:
        """The step as it was written."""
        return f"sdf[{self.name!r}] = {self.to.text}"

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """What is assigned."""
        return (self.to,)

    @property
    def may_share_parts(self) -> bool:
        """Whether the expression may give a part of the value."""
        return self.to.gives_parts

    def separate(self, value: Any) -> None:
        """A column has a value of its own, as in JSON."""
        value[self.name] = copied(value[self.name])

    def inlined(self, value: str, named: Named) -> Inlined:
        """The assignment as code."""
        return Inlined((f"{value}[{self.name!r}] = {self.to.code(value, named)}",))

    def write_run(self, writer: RunWriter) -> None:
        """A variable."""
        writer.assign(self.name, self.to)

    def _run(self, value: Any) -> Any:
        made = self.to.evaluate(value)
        try:
            value[self.name] = made
        except UNFIT as error:
            raise Failed(error) from error


@dataclass(frozen=True, slots=True, eq=False)
class Filled(_Changed):
    """``sdf.fill(a=0)``: values for columns that are missing or None."""

    values: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The step as it was written."""
        return f"sdf.fill({', '.join(f'{name}={text_of(each)}' for name, each in self.values.items())})"

    def inlined(self, value: str, named: Named) -> Inlined:
        """The fills as code."""
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
    """``sdf.drop("a")``: takes columns out."""

    names: tuple[str, ...]
    ignores: bool

    @property
    def text(self) -> str:
        """The step as it was written."""
        how = ', errors="ignore"' if self.ignores else ""
        return f"sdf.drop({text_of([*self.names])}{how})"

    def inlined(self, value: str, named: Named) -> Inlined:
        """The deletions as code."""
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
    """The error for a column that was to be taken out."""
    name = error.args[0] if isinstance(error, KeyError) else None
    return missing(name, value, step) if isinstance(name, str) and name in names else unfit(error, step)


class _Taken(LookupError):
    """A new name of a column is the name of another column."""


@dataclass(frozen=True, slots=True, eq=False)
class Renamed(_Changed):
    """``sdf.rename({"a": "b"})``: other names for columns, which then stand behind the others."""

    names: Mapping[str, str]
    ignores: bool

    @property
    def text(self) -> str:
        """The step as it was written."""
        how = ', errors="ignore"' if self.ignores else ""
        return f"sdf.rename({text_of(dict(self.names))}{how})"

    def inlined(self, value: str, named: Named) -> Inlined:
        """A call: only that knows which names are there."""
        return Inlined((f"{named('renamed', renamed)}({value}, {named('names', self.names)}, {self.ignores})",))

    def fail(self, value: Any, error: BaseException) -> NoReturn:
        """Raises the failure: the traceback has the frame of ``renamed``, and no function of a user."""
        raise self.failure(value, error) from error

    def _change(self, value: Any) -> None:
        renamed(value, self.names, self.ignores)

    def _own_failure(self, value: Any, error: BaseException) -> HoldfastError:
        return _missing_of(self.names, value, error, self.text)


def renamed(value: Any, names: Mapping[str, str], ignores: bool) -> None:
    """Gives columns other names, all at once; leaves the value unchanged if it raises."""
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
