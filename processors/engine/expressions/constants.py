"""Constants inside expressions: their text for versions, and their code in the generated loop.

Invariants:
    - The text of a constant is the same in each process. It has no address, and no order of a set.
    - A message never gets an object of another message: a list or a dict is a new one for each message.
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

#: Gives a name for an object in the generated code; the first argument says what it is.
Named = Callable[[str, Any], str]

#: Larger constants are referred to by a name instead of a literal.
_LITERAL_ITEMS_MAX = 64
#: Python limits the digits of a number in a text.
_INT_MAX = 1 << 64
_TEXTUAL = (str, int, bytes, bool, type(None))
_REPRESENTED = (Decimal, datetime, date, time, timedelta, UUID, range, complex)
_UNCHANGEABLE = (*_TEXTUAL, float, *_REPRESENTED, Enum)


def kept_constant(value: Any) -> Any:
    """The constant as an expression keeps it: a copy, so that later changes of a list change nothing."""
    try:
        return copied(value)
    except ValueNotCopied:
        return value


def text_of(value: Any) -> str:
    """The text of a constant, for the version, for errors and for readers."""
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
    """The constant for one message, which may change it."""
    return value if isinstance(value, _UNCHANGEABLE) else kept_constant(value)


def fresh_code(value: Any, named: Named) -> str:
    """The code of ``fresh``: a literal where Python has one."""
    if _is_literal(value, [_LITERAL_ITEMS_MAX]):
        return repr(value)
    name = named("constant", value)
    return name if isinstance(value, _UNCHANGEABLE) else f"{named('fresh', fresh)}({name})"


def compared_code(value: Any, named: Named) -> str:
    """The code of a constant that no message gets, so that it needs no copy."""
    return repr(value) if _is_literal(value, [_LITERAL_ITEMS_MAX]) else named("constant", value)


def same_code(value: Any, named: Named) -> str:
    """The code of a constant whose identity is asked: the object itself."""
    if value is None or value is True or value is False:
        return repr(value)
    return named("constant", value)


def _is_literal(value: Any, left: list[int]) -> bool:
    """Whether the ``repr`` of a value is code that makes an equal one; ``left`` counts its parts down."""
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
