"""The parts of a column expression, which form a tree.

    sdf["price"] * sdf["n"] > 100          Operation(">")
                                           ├── Operation("*")
                                           │   ├── Item(VALUE, "price")
                                           │   └── Item(VALUE, "n")
                                           └── Constant(100)

Each part can be used in two ways: ``evaluate`` computes it with Python's operators, for the plain loop; ``code`` writes
it as Python code, for the generated loop. ``tests/unit/processors/engine/expressions/test_meaning.py`` compares the
results of ``evaluate`` and ``code`` with plain Python.
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

#: Maximum depth of an expression's tree. Deeper expressions are refused, because Python's parser limits nested code.
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
#: Operators whose result never contains an operand. If an operand is a constant, it therefore needs no copy.
_COMPARING = frozenset(("==", "!=", "<", "<=", ">", ">=", "in"))
#: Types whose parts are read by ``[...]``. For all other types, the parts are attributes.
_ITEMS = (dict, list, tuple, str, bytes)
_UNARY: Mapping[str, Callable[[Any], Any]] = {"-": operator.neg, "~": operator.not_, "abs": abs}


class Failed(Exception):
    """A part of an expression could not be computed; ``error`` is Python's exception.

    An error of a user function is raised directly, and not as ``Failed``.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@dataclass(frozen=True, eq=False)
class Expression:
    """A node of an expression's tree.

    ``parts`` are the nodes from which it is computed, in the order of the operands.
    """

    parts: tuple[Expression, ...] = ()

    @cached_property
    def depth(self) -> int:
        """The number of levels of the tree below and including this node."""
        return 1 + max((each.depth for each in self.parts), default=0)

    @cached_property
    def text(self) -> str:
        """The expression as code, for example ``(sdf['price'] * 2)``."""
        return self._text([each.text for each in self.parts])

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions inside the expression, in the order in which they are called."""
        return tuple(function for each in self.parts for function in each.functions)

    @property
    def gives_parts(self) -> bool:
        """Whether the result may share an object (such as a list) with the message's value."""
        return True

    def evaluate(self, value: Any) -> Any:
        """Returns the result of the expression for a message's value.

        Raises:
            Failed: A part could not be computed.
            Exception: The error that a user function raised.
        """
        return self.checked(value, [each.evaluate(value) for each in self.parts])

    def checked(self, value: Any, operands: Sequence[Any]) -> Any:
        """Computes this node from the results of its parts (``operands``); raises Failed if Python raises an error."""
        try:
            return self._compute(value, operands)
        except UNFIT as error:
            raise Failed(error) from error

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        """Returns the result of this node, computed from the results of its parts (``operands``)."""
        raise NotImplementedError

    def code(self, value: str, named: Named) -> str:
        """Returns the expression as Python code. ``value`` is the name of the variable with the message's value."""
        return self._code(value, [each.code(value, named) for each in self.parts], named)

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        raise NotImplementedError

    def _text(self, operands: Sequence[str]) -> str:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Value(Expression):
    """The whole value of the message."""

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return value

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        return value

    def _text(self, operands: Sequence[str]) -> str:
        return "sdf"


#: The only instance of ``Value``. The path to every column begins with it, for example the path of ``sdf["a"]["b"]``.
VALUE = Value()


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    """A constant, which is the same for all messages."""

    of: Any = None

    @property
    def gives_parts(self) -> bool:
        """Returns False, because a constant never contains an object of the message's value."""
        return False

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return fresh(self.of)

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        return fresh_code(self.of, named)

    def _text(self, operands: Sequence[str]) -> str:
        return text_of(self.of)


@dataclass(frozen=True, eq=False)
class Item(Expression):
    """A field of an object, or an item of a list: ``whole[key]``. ``parts`` are the whole and the key."""

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return operands[0][operands[1]]

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        return f"{operands[0]}[{operands[1]}]"

    def _text(self, operands: Sequence[str]) -> str:
        return f"{operands[0]}[{operands[1]}]"


@dataclass(frozen=True, eq=False)
class Field(Item):
    """A field or an item, like ``Item``, for streams whose values may be instances of a class."""

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        whole, key = operands
        return whole[key] if isinstance(whole, _ITEMS) else getattr(whole, key)

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        """Returns the code of an expression that reads an item or an attribute.

        The code calls no helper function. If the read fails, a helper would add a frame to the traceback, and such a
        frame means that a user function raised the error.
        """
        part, whole = f"part_{self.depth}", operands[0]
        items = named("items", _ITEMS)
        return f"({part}[{operands[1]}] if isinstance({part} := {whole}, {items}) else getattr({part}, {operands[1]}))"


@dataclass(frozen=True, eq=False)
class Slice(Expression):
    """A slice of a list or a text: ``[first:end:step]``."""

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
    """One of Python's binary operators, with two operands."""

    symbol: str = ""

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return _OPERATORS[self.symbol](*self._same(operands))

    @property
    def gives_parts(self) -> bool:
        """Returns True only for ``+`` and ``*`` of parts of the value: the new list has the same objects as items."""
        return self.symbol in ("+", "*") and any(each.gives_parts for each in self.parts)

    def _same(self, operands: Sequence[Any]) -> Sequence[Any]:
        """For ``is`` and ``is not``, uses the constant itself instead of a copy, because a copy is another object."""
        if self.symbol not in _IDENTITY:
            return operands
        return [part.of if isinstance(part, Constant) else at for part, at in zip(self.parts, operands, strict=True)]

    def code(self, value: str, named: Named) -> str:
        """Returns the operation as code, in brackets."""
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
    """The operators ``&`` and ``|``, computed as Python's ``and`` and ``or``: the second operand may not be needed."""

    symbol: str = "and"

    def evaluate(self, value: Any) -> Any:
        """Computes the result. The second operand is computed only if the first one does not decide the result."""
        left = self.parts[0].evaluate(value)
        return self.parts[1].evaluate(value) if self.decides(left) else left

    def decides(self, left: Any) -> bool:
        """Whether the second operand decides the result. It does, unless the first operand's result ``left`` does."""
        return bool(left) is (self.symbol == "and")

    def _compute(self, value: Any, operands: Sequence[Any]) -> Any:
        return operands[1] if self.decides(operands[0]) else operands[0]

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        return f"({operands[0]} {self.symbol} {operands[1]})"

    def _text(self, operands: Sequence[str]) -> str:
        return f"({operands[0]} {'&' if self.symbol == 'and' else '|'} {operands[1]})"


@dataclass(frozen=True, eq=False)
class Unary(Expression):
    """The operators ``-`` and ``~`` (computed as Python's ``not``), and the function ``abs``."""

    symbol: str = "-"

    @property
    def gives_parts(self) -> bool:
        """Returns False, because the result never contains an object of the message's value."""
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
    """A call of a user function with one argument."""

    function: Callable[[Any], Any] = repr

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions inside the argument, followed by this function."""
        return (*super().functions, self.function)

    def checked(self, value: Any, operands: Sequence[Any]) -> Any:
        """Calls the user function. An error of the function is raised unchanged."""
        return self.function(operands[0])

    def _code(self, value: str, operands: Sequence[str], named: Named) -> str:
        return f"{named('call', self.called)}({operands[0]})"

    @cached_property
    def called(self) -> Callable[[Any], Any]:
        """The user function, wrapped as a Python function if it is a built-in function.

        A built-in function has no frame in a traceback. The frame of the wrapping function shows that a user function
        raised the error.
        """
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
    """Whether the value is an object that has all of these fields."""

    names: tuple[str, ...] = ()
    #: Whether the value may be an instance of a class, whose fields are attributes.
    typed: bool = False

    @property
    def gives_parts(self) -> bool:
        """Returns False, because the result never contains an object of the message's value."""
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
