"""Identifies a user's function by a short hash of its source. A different hash means a different function.

The hash ignores comments, docstrings, white space, and code around a lambda. The hash includes texts and numbers of the
closure (variables of an outer function). For example, if ``by(name)`` returns a function that uses ``name``, then
``by("carrier")`` and ``by("plane")`` have different hashes.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import io
import tokenize
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import CodeType
from typing import Any, TypeVar

from holdfast.infra.errors import BadConfiguration

Function = TypeVar("Function", bound=Callable[..., Any])

#: The name of the attribute in which ``same_as`` stores the earlier function's hash.
_SAME_AS = "__holdfast_same_as__"
_HASH_DIGITS = 8
#: Types of closure values that are included in a function's hash.
_PLAIN = (str, bytes, int, float, bool, type(None))


class FunctionInvalid(BadConfiguration):
    """The argument of ``same_as`` is not a hash of a function."""


def same_as(former: str) -> Callable[[Function], Function]:
    """Decorator for a changed function that gives the same results as an earlier version of the function.

    With this decorator, a deployment keeps the state that the earlier version wrote.

    Args:
        former: The hash of the earlier function. It is in the error with which a deployment or worker refuses the
            change.

    Raises:
        FunctionInvalid: The text does not have the format of a hash.
    """
    is_hash = isinstance(former, str) and len(former) == _HASH_DIGITS
    if not is_hash or not set(former) <= set("0123456789abcdef"):
        raise FunctionInvalid(
            f"`same_as` got {former!r}, expected the {_HASH_DIGITS} digits of a former function.",
            action="Copy them from the error that asks for them.",
            seen=repr(former)[:80],
        )

    def marked(function: Function) -> Function:
        setattr(function, _SAME_AS, former)
        return function

    return marked


def hash_of(function: Callable[..., Any]) -> str:
    """Returns eight hex digits that identify a function by its source, or by its name if its source can't be read.

    For a function with ``same_as``, returns the hash given there.
    """
    said = getattr(function, _SAME_AS, None)
    return said if isinstance(said, str) else hashlib.sha256(_text(function).encode()).hexdigest()[:_HASH_DIGITS]


def _text(function: Any) -> str:
    if isinstance(function, partial):
        bound = [repr(each) for each in function.args if isinstance(each, _PLAIN)]
        named = [f"{name}={each!r}" for name, each in sorted(function.keywords.items()) if isinstance(each, _PLAIN)]
        return " ".join([_text(function.func), *bound, *named])
    unwrapped = inspect.unwrap(function)
    code = getattr(unwrapped, "__code__", None)
    if not isinstance(code, CodeType):
        called = getattr(type(function), "__call__", None)  # noqa: B004 # of an object that is called
        inner = getattr(called, "__code__", None)
        name = str(getattr(function, "__qualname__", type(function).__qualname__))
        return f"{name} {_source(inner)}" if isinstance(inner, CodeType) else name
    return " ".join([_source(code) or str(unwrapped.__qualname__), *_closed_over(unwrapped)])


def _closed_over(function: Any) -> Iterator[str]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            held = cell.cell_contents
        except ValueError:  # the variable of the closure has no value yet
            continue
        if isinstance(held, _PLAIN):
            yield f"{name}={held!r}"


@lru_cache(maxsize=1024)
def _source(code: CodeType) -> str:
    """Returns the source text of one function, without its docstring and comments; empty if it can't be read."""
    try:
        lines, _ = inspect.findsource(code)
        text = "".join(lines)
        found = _node_of(code, _tree(text))
    except (OSError, TypeError, SyntaxError, ValueError):
        return ""
    segment = None if found is None else ast.get_source_segment(text, found)
    if found is None or segment is None:
        return ""
    told = _docstring(text, found)
    return _packed(segment.replace(told, "", 1) if told else segment)


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


def _node_of(code: CodeType, tree: ast.Module) -> ast.AST | None:
    if code.co_name != "<lambda>":
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if code.co_firstlineno in (first, node.lineno):
                    return node
        return None
    # Several lambdas may begin in the same line. The columns of the bytecode instructions show which lambda has this
    # code.
    places = [(first, column) for first, _, column, _ in code.co_positions() if first and column]
    lambdas = [each for each in ast.walk(tree) if isinstance(each, ast.Lambda)]
    around = [each for each in lambdas if all(_is_within(each.body, *place) for place in places)]
    begun = [each for each in around if each.lineno <= code.co_firstlineno <= (each.end_lineno or each.lineno)]
    return min(begun, key=lambda each: len(ast.dump(each)), default=None)


def _is_within(node: ast.expr, line: int, column: int) -> bool:
    return (node.lineno, node.col_offset) <= (line, column) <= (node.end_lineno or 0, node.end_col_offset or 0)


def _docstring(text: str, node: ast.AST) -> str | None:
    body = getattr(node, "body", None)
    if not isinstance(body, list) or ast.get_docstring(node, clean=False) is None:  # type: ignore[arg-type]
        return None
    return ast.get_source_segment(text, body[0])


def _packed(segment: str) -> str:
    """Removes comments and line breaks from a source text."""
    lines = segment.splitlines()
    try:
        for token in tokenize.generate_tokens(io.StringIO(segment).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    # The text of a lambda over several lines is not valid by itself, because its surrounding brackets are missing.
    except (tokenize.TokenError, IndentationError, SyntaxError):
        pass
    return " ".join(" ".join(lines).split())
