"""The parts of an expression of columns, as a tree.

    sdf["price"] * sdf["n"] > 100          Operation(">")
                                           ├── Operation("*")
                                           │   ├── Item(VALUE, "price")
                                           │   └── Item(VALUE, "n")
                                           └── Constant(100)

Each part has two meanings: ``evaluate`` computes it by Python's operators, as the plain loop does; ``code`` writes it
as Python code for the generated loop. ``tests/unit/processors/engine/expressions/test_meaning.py`` compares both with
plain Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import FunctionType, MethodType
from typing import Any

from holdfast.processors.engine.expressions.constants import (
    Named,
    compared_code,
    fresh,
    fresh_code,
    same_code,
    text_of,
)
from holdfast.processors.engine.steps.step import UNFIT

#: More nesting than this is refused: Python's parser has limits of its own.
DEPTH_MAX = 120

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda part, whole: part in whole,
}
_IDENTITY = frozenset(("is", "is not"))
#: Operations whose result has no part of an operand: a constant needs no copy.
_COMPARING = frozenset(("==", "!=", "<", "<=", ">", ">=", "in"))
#: Types whose parts are read by ``[...]``; the parts of every other type are attributes.
_ITEMS = (dict, list, tuple, str, bytes)
_UNARY: Mapping[str, Callable[[Any], Any]] = {"-": operator.neg, "~": operator.not_, "abs": abs}


class Failed(Exception):
    """A part could not be computed; ``error`` is what Python raised. Functions of users raise their own errors."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@dataclass(frozen=True, eq=False)
class Expression:
    """A part of an expression, with the parts that it is computed from, in their order."""

    parts: tuple[Expression, ...] = ()

    @cached_property
    def depth(self) -> int:
        """How many parts are nested in each other."""
        return 1 + max((each.depth for each in self.parts), default=0)

    @cached_property
    def text(self) -> str:
        """The expression as it was written."""
        return self._text([each.text for each in self.parts])

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions of users, in the order of their calls."""
        return tuple(function for each in self.parts for function in each.functions)

    @property
    def gives_parts(self) -> bool:
        """Whether a result may be a part of the message's value, or have one inside."""
        return True

    def evaluate(self, value: Any) -> Any:
        """The result for a message's value.

        Raises:
            Failed: A part could not be computed.
            Exception: What a function of a user raised.
        """
        return self.checked(value, [each.evaluate(value) for each in self.parts])

    def checked(self, value: Any, operands: Sequence[Any]) -> Any:
        """The result of this part alone; raises Failed as ``evaluate``."""
        try:
            return self._compute(value, operands)
        except UNFIT as error:
            raise Failed(error) from error

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        """The result of this part, from the results of its parts."""
        raise NotImplementedError

    def code(self, value: str, named: Named) -> str:
        """The expression as Python code; ``value`` is the name of the message's value there."""
        return self._code(value, [each.code(value, named) for each in self.parts], named)

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        raise NotImplementedError

    def _text(self, operands: Sequence[str]) -> str:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Value(Expression):
    """The message's value."""

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return value

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        return value

    def _text(self, operands: Sequence[str]) -> str:
        return "sdf"


#: The root of every path.
VALUE = Value()


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    """A value that is the same for all messages."""

    of: Any = None

    @property
    def gives_parts(self) -> bool:
        """It has nothing of the value."""
        return False

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return fresh(self.of)

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        return fresh_code(self.of, named)

    def _text(self, operands: Sequence[str]) -> str:
        return text_of(self.of)


@dataclass(frozen=True, eq=False)
class Item(Expression):
    """A field of an object, or an item of a list: ``parts`` are the whole and the key."""

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return operands[0][operands[1]]

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        return f"{operands[0]}[{operands[1]}]"

    def _text(self, operands: Sequence[str]) -> str:
        return f"{operands[0]}[{operands[1]}]"


@dataclass(frozen=True, eq=False)
class Field(Item):
    """A field of an instance of a model, or of an object, or an item of a list: for streams of typed messages."""

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        whole, key = operands
        return whole[key] if isinstance(whole, _ITEMS) else getattr(whole, key)

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        """The choice as one expression. A function would have a frame in the traceback, as a user's function has."""
        part, whole = f"part_{self.depth}", operands[0]
        items = named("items", _ITEMS)
        return f"({part}[{operands[1]}] if isinstance({part} := {whole}, {items}) else getattr({part}, {operands[1]}))"


@dataclass(frozen=True, eq=False)
class Slice(Expression):
    """A part of a list or a text: ``[first:end:step]``."""

    bounds: slice = field(default_factory=lambda: slice(None))

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return operands[0][self.bounds]

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        return f"{operands[0]}[{named('bounds', self.bounds)}]"

    def _text(self, operands: Sequence[str]) -> str:
        shown = ["" if each is None else text_of(each) for each in (self.bounds.start, self.bounds.stop)]
        step = "" if self.bounds.step is None else f":{text_of(self.bounds.step)}"
        return f"{operands[0]}[{':'.join(shown)}{step}]"


@dataclass(frozen=True, eq=False)
class Operation(Expression):
    """An operator of Python between two parts."""

    symbol: str = ""

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return _OPERATORS[self.symbol](*self._same(operands))

    @property
    def gives_parts(self) -> bool:
        """Only lists that are joined or repeated have parts of the value."""
        return self.symbol in ("+", "*") and any(each.gives_parts for each in self.parts)

    def _same(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Identity is asked of the constant itself, and not of its copy."""
        if self.symbol not in _IDENTITY:
            return operands
        return [part.of if isinstance(part, Constant) else at for part, at in zip(self.parts, operands, strict=True)]

    def code(self, value: str, named: Named) -> str:
        """The operation in brackets."""
        left, right = [self._part_code(each, value, named) for each in self.parts]
        return f"({left} {self.symbol} {right})"

    def _part_code(self, part: Expression, value: str, named: Named) -> str:
        if isinstance(part, Constant) and self.symbol in _IDENTITY:
            return same_code(part.of, named)
        if isinstance(part, Constant) and self.symbol in _COMPARING:
            return compared_code(part.of, named)
        return part.code(value, named)

    def _text(self, operands: Sequence[str]) -> str:
        return f"({operands[0]} {self.symbol} {operands[1]})"


@dataclass(frozen=True, eq=False)
class Logical(Expression):
    """``&`` or ``|``, as Python's ``and`` and ``or``: the first part may make the second one needless."""

    symbol: str = "and"

    def evaluate(self, value: Any) -> Any:
        """As of other parts, but the second one may stay without a result."""
        left = self.parts[0].evaluate(value)
        return self.parts[1].evaluate(value) if self.decides(left) else left

    def decides(self, left: Any) -> bool:
        """Whether the second part decides, given the result of the first one."""
        return bool(left) is (self.symbol == "and")

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return operands[1] if self.decides(operands[0]) else operands[0]

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        return f"({operands[0]} {self.symbol} {operands[1]})"

    def _text(self, operands: Sequence[str]) -> str:
        return f"({operands[0]} {'&' if self.symbol == 'and' else '|'} {operands[1]})"


@dataclass(frozen=True, eq=False)
class Unary(Expression):
    """``-``, ``abs``, or ``~``, which is Python's ``not``."""

    symbol: str = "-"

    @property
    def gives_parts(self) -> bool:
        """It has nothing of the value."""
        return False

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return _UNARY[self.symbol](operands[0])

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        if self.symbol == "abs":
            return f"abs({operands[0]})"
        return f"(not {operands[0]})" if self.symbol == "~" else f"(-{operands[0]})"

    def _text(self, operands: Sequence[str]) -> str:
        return f"{operands[0]}.abs()" if self.symbol == "abs" else f"{self.symbol}{operands[0]}"


@dataclass(frozen=True, eq=False)
class Call(Expression):
    """A function of a user, of one part."""

    function: Callable[[Any], Any] = repr

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions below it, and its own."""
        return (*super().functions, self.function)

    def checked(self, value: Any, operands: Sequence[Any]) -> Any:
        """The function's result; its errors are the user's."""
        return self.function(operands[0])

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        return f"{named('call', self.called)}({operands[0]})"

    @cached_property
    def called(self) -> Callable[[Any], Any]:
        """The function as a function of Python: the traceback of its error shows a frame of its own."""
        function = self.function
        if isinstance(function.__func__ if isinstance(function, MethodType) else function, FunctionType):
            return function

        def called(given: Any) -> Any:
            return function(given)

        return called

    def _text(self, operands: Sequence[str]) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"{operands[0]}.apply({name})"


@dataclass(frozen=True, eq=False)
class HasFields(Expression):
    """Whether the value is an object with all of these fields."""

    names: tuple[str, ...] = ()
    #: Whether the value may be an instance of a model.
    typed: bool = False

    @property
    def gives_parts(self) -> bool:
        """It has nothing of the value."""
        return False

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        if self.typed and not isinstance(value, _ITEMS):
            return all(hasattr(value, name) for name in self.names)
        fields = value.keys()
        return all(name in fields for name in self.names)

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        first, *others = self.names
        has = f"({' and '.join([f'{first!r} in {value}.keys()', *(f'{each!r} in {value}' for each in others)])})"
        if not self.typed:
            return has
        attributes = " and ".join(f"hasattr({value}, {each!r})" for each in self.names)
        return f"({has} if isinstance({value}, {named('items', _ITEMS)}) else ({attributes}))"

    def _text(self, operands: Sequence[str]) -> str:
        return f"sdf.contains({text_of(self.names[0] if len(self.names) == 1 else [*self.names])})"
