"""Constants inside column expressions: their text in version hashes, and their code in the generated loop.

Invariants:
    - The text of a constant is the same in every process. It contains no memory address, and a set's items are sorted.
    - Two messages never share a constant that can be changed: each message gets its own copy of a list or a dict.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from holdfast.processors.engine.steps.in_place import ValueNotCopied, copied

#: A function that returns a name for an object in the generated code. Its first argument becomes a part of the name.
Named = Callable[[str, Any], str]

#: A constant with more parts than this number is not written as a literal. The generated code refers to it by a name.
_LITERAL_ITEMS_MAX = 64
#: Larger numbers are not written as literals, because Python limits the digits of a number in source code.
_INT_MAX = 1 << 64
_TEXTUAL = (str, int, bytes, bool, type(None))
_REPRESENTED = (Decimal, datetime, date, time, timedelta, UUID, range, complex)
_UNCHANGEABLE = (*_TEXTUAL, float, *_REPRESENTED, Enum)


def kept_constant(value: Any) -> Any:
    """Returns a copy of the constant, so that later changes of the user's object do not change the expression."""
    try:
        return copied(value)
    except ValueNotCopied:
        return value


def text_of(value: Any) -> str:
    """Returns the text of a constant, for version hashes and for errors."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if type(value) in (*_TEXTUAL, float, *_REPRESENTED):
        return repr(value)
    if type(value) is list:
        return f"[{', '.join(map(text_of, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(text_of, value))}{',' * (len(value) == 1)})"
    if type(value) in (set, frozenset):
        return f"{type(value).__name__}({{{', '.join(sorted(map(text_of, value)))}}})"
    if type(value) is dict:
        return f"{{{', '.join(f'{text_of(name)}: {text_of(each)}' for name, each in value.items())}}}"
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def fresh(value: Any) -> Any:
    """Returns the constant for one message: a copy of a list or a dict, because a user function may change it."""
    return value if isinstance(value, _UNCHANGEABLE) else kept_constant(value)


def fresh_code(value: Any, named: Named) -> str:
    """Returns code that computes the same value as ``fresh``: a literal if possible, otherwise a name or a call."""
    if _is_literal(value, [_LITERAL_ITEMS_MAX]):
        return repr(value)
    name = named("constant", value)
    return name if isinstance(value, _UNCHANGEABLE) else f"{named('fresh', fresh)}({name})"


def compared_code(value: Any, named: Named) -> str:
    """Returns code for a constant that is only compared. It needs no copy, because no user function gets the object."""
    return repr(value) if _is_literal(value, [_LITERAL_ITEMS_MAX]) else named("constant", value)


def same_code(value: Any, named: Named) -> str:
    """Returns code for a constant that is compared by ``is``: it refers to the object itself, not to a copy."""
    if value is None or value is True or value is False:
        return repr(value)
    return named("constant", value)


def _is_literal(value: Any, left: list[int]) -> bool:
    """Whether ``repr(value)`` is code that makes an equal value.

    ``left`` is a list with one number: how many parts of a constant may still become part of the literal.
    """
    left[0] -= 1
    if left[0] < 0:
        return False
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind is int:
        return bool(-_INT_MAX < value < _INT_MAX)
    if kind in _TEXTUAL:
        return True
    if kind in (list, tuple):
        return all(_is_literal(each, left) for each in value)
    return kind is dict and all(_is_literal(part, left) for pair in value.items() for part in pair)
