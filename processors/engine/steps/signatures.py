"""Whether a user's function can be called with the arguments that a step has for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

#: Values in the place of arguments, in a call that is only tried.
_ANY = object()


def refuses(func: Any, positional: int) -> bool:
    """Whether a call with so many arguments raises a TypeError; False where Python can't tell the parameters."""
    if not callable(func):
        return True
    try:
        # a wrapper is called with its own parameters, not with those of the function that it wraps
        signature = inspect.signature(func, follow_wrapped=False)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(*[_ANY] * positional)
    except TypeError:
        return True
    return False


def is_async(func: Any) -> bool:
    """Whether a call gives something to await in place of a value: a function of ``async def``, or an object of one."""
    called = getattr(type(func), "__call__", None)  # noqa: B004 # of an object that is called
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(called)


def written(func: Callable[..., Any]) -> str:
    """Name and parameters of a function, as in its definition."""
    name = str(getattr(func, "__name__", type(func).__name__))
    try:
        return f"{name}{inspect.signature(func, follow_wrapped=False)}"
    except (TypeError, ValueError):
        return f"{name}(...)"
