"""Checks whether a user's function accepts the arguments that a step passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

#: A placeholder argument to test whether a signature accepts a call. The function is not called.
_ANY = object()


def refuses(func: Any, positional: int) -> bool:
    """Whether a call with this number of positional arguments would raise a TypeError.

    Returns False if Python can't determine the parameters.
    """
    if not callable(func):
        return True
    try:
        # A wrapped function is called with the parameters of its wrapper, so the signature of the wrapper is checked.
        signature = inspect.signature(func, follow_wrapped=False)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(*[_ANY] * positional)
    except TypeError:
        return True
    return False


def is_async(func: Any) -> bool:
    """Whether a call returns an awaitable: for an ``async def`` function, or an object with an async ``__call__``."""
    called = getattr(type(func), "__call__", None)  # noqa: B004 # of an object that is called
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(called)


def written(func: Callable[..., Any]) -> str:
    """Formats the name and the parameters of a function, as in its definition."""
    name = str(getattr(func, "__name__", type(func).__name__))
    try:
        return f"{name}{inspect.signature(func, follow_wrapped=False)}"
    except (TypeError, ValueError):
        return f"{name}(...)"
