"""Decides whether a user's function may change its argument, and copies values for such functions.

All branches of a stream, all matches of a join, and all windows that contain a value get the same object. A branch,
match or window that may change the value gets a copy, so that no other branch, match or window sees the change. A
function that only reads needs no copy. A branch makes its copy just before its first step that changes something. A
filter before this step may drop the message; then no copy is made. This module decides by the function's bytecode and
by the names that the function uses. Code that is not known to be harmless counts as a change, which costs a copy.
"""

from __future__ import annotations

import builtins
import copy
import dis
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from holdfast.infra.errors import HoldfastError

#: Types whose values are immutable.
_ATOMS = frozenset((str, int, float, bool, bytes, type(None), datetime, date, time, timedelta, Decimal))
#: Built-in functions that do not change their arguments.
_READING = frozenset(
    getattr(builtins, name)
    for name in (
        *("abs", "all", "any", "bin", "bool", "bytes", "chr", "dict", "divmod", "enumerate", "float", "format"),
        *("filter", "frozenset", "hash", "hex", "int", "isinstance", "issubclass", "len", "list", "map", "max", "min"),
        *("ord", "pow", "print", "range", "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple"),
        *("type", "zip"),
    )
)
#: Modules whose functions do not change their arguments; a function that uses only these needs no copy.
_READING_MODULES = frozenset(
    (
        "json",
        "math",
        "re",
        "statistics",
        "hashlib",
        "base64",
        "zlib",
        "datetime",
        "_datetime",
        "decimal",
        "time",
        "uuid",
        "msgspec",
        "msgspec.json",
        "msgspec.msgpack",
        "msgspec._core",
    )
)
#: Names of methods of common value types (texts, dicts, dates, ...) that do not change their object.
_READING_METHODS = frozenset(
    (
        *("get", "items", "keys", "values", "copy", "count", "index", "union", "intersection", "difference"),
        *("split", "rsplit", "splitlines", "partition", "rpartition", "strip", "lstrip", "rstrip", "lower", "upper"),
        *("title", "capitalize", "casefold", "startswith", "endswith", "removeprefix", "removesuffix", "replace"),
        *("find", "rfind", "join", "format", "encode", "decode", "hex", "isdigit", "isalpha", "isalnum", "isnumeric"),
        *("zfill", "ljust", "rjust", "isoformat", "total_seconds", "timestamp", "strftime", "fromisoformat"),
        *("fromtimestamp", "hexdigest", "digest", "group", "groups", "is_integer", "bit_length", "quantize"),
    )
)
#: Bytecode instructions that change an object, store it for later, or load unknown code.
_CHANGING = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE", "STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "IMPORT_")
#: Bytecode instructions that read attributes.
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
#: Bytecode instructions that read names from outside of a function.
_OUTSIDE = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS")
#: Limits for the check of a container that a function uses as a global or closure name: maximum number of elements, and
#: maximum nesting. A larger container counts as changeable.
_LOOKED_AT_MAX, _DEPTH_MAX = 1_000, 4
#: Stands for the value of a name that is not assigned yet.
_UNKNOWN = object()


class Touch(Enum):
    """The part of its input value that a step may change."""

    NOTHING = 0
    #: The step may change the fields of the value object, but not the objects inside the fields.
    OBJECT = 1
    ALL = 2


class ValueNotCopied(HoldfastError):
    """A value can't be copied.

    A copy is needed because several branches, matches or windows get the same value, and a step may change it.
    """


def copied(value: Any) -> Any:
    """Returns a copy that shares no mutable part with the original.

    Raises:
        ValueNotCopied: The value's type can't be copied.
    """
    kind = type(value)
    if kind is dict:
        return {key: each if type(each) in _ATOMS else copied(each) for key, each in value.items()}
    if kind is list:
        return [each if type(each) in _ATOMS else copied(each) for each in value]
    if kind is tuple:
        return tuple([each if type(each) in _ATOMS else copied(each) for each in value])
    if kind in _ATOMS:
        return value
    try:
        return copy.deepcopy(value)
    except Exception as failure:
        raise ValueNotCopied(
            f"A value of type {kind.__name__} goes to several steps, one of which may change it; it can't be copied: "
            f"{failure}.",
            action=f"Give {kind.__name__} a method `__deepcopy__(self, memo)`; or make the value an object of JSON by "
            "`sdf.apply(function)` before the branches.",
            seen=kind.__name__,
        ) from failure


def own_object(value: Any) -> Any:
    """Returns a copy of a dict that contains the same objects. A value of another type is copied with all its parts."""
    return value.copy() if type(value) is dict else copied(value)


def apart(results: Sequence[Any]) -> Sequence[Any]:
    """Returns the results of one message, so that no two of them share a part: all except the last are copied."""
    return [*map(copied, results[:-1]), results[-1]] if len(results) > 1 else results


def may_change(function: Callable[..., Any], *, stateful: bool = False) -> bool:
    """Whether a function may change its arguments. False is certain. True only means that a change can't be ruled out.

    ``stateful`` is True if the function's last argument is a state. Calls of the state's methods do not count as
    changes.
    """
    try:
        return _known(function, stateful)
    except TypeError:  # the function is not hashable, so ``_known`` can't cache its result
        return True


@cache
def _known(function: Callable[..., Any], stateful: bool) -> bool:
    """Returns the same as ``may_change``. The result is cached, so each function is examined once for all tasks."""
    return _may_change(function, set(), stateful=stateful)


def _may_change(function: Any, seen: set[int], *, stateful: bool = False) -> bool:
    if isinstance(function, BuiltinFunctionType):
        return function not in _READING and function.__module__ not in _READING_MODULES
    if isinstance(function, type):
        return not (function in _READING or function in _ATOMS or issubclass(function, BaseException))
    if not isinstance(function, FunctionType):
        return True
    if id(function) in seen or function.__module__ in _READING_MODULES:
        return False
    seen.add(id(function))
    given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not all(map(_is_data, given)):
        return True
    own = function.__code__
    state = state_of(own) if stateful else ""
    return any(_changes(code, function, seen, state if code is own else "") for code in _codes(own))


def state_of(code: CodeType) -> str:
    """Returns the name of a stateful function's last argument, the state; empty for a function without arguments."""
    return code.co_varnames[code.co_argcount - 1] if code.co_argcount else ""


def is_loaded(instruction: dis.Instruction | None, name: str) -> bool:
    """Whether an instruction loads a local variable last, so that the next one works on it."""
    if instruction is None or not instruction.opname.startswith("LOAD_FAST"):
        return False
    loaded = instruction.argval  # Since Python 3.13, one instruction may load two variables.
    return bool((loaded[-1] if isinstance(loaded, tuple) else loaded) == name)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yields the code of a function, and of all functions inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _changes(code: CodeType, function: FunctionType, seen: set[int], state: str) -> bool:
    """Whether an instruction in ``code`` may change an object.

    ``state`` is the name of the state argument. Calls of its methods do not count as changes.
    """
    last: Any = None
    for each in dis.get_instructions(code):
        name, value = each.opname, each.argval
        if name.startswith(_CHANGING) or (name == "STORE_FAST" and value == state):
            return True
        if name == "BINARY_OP" and each.argrepr.endswith("="):
            return True
        reads = value in _READING_METHODS or is_loaded(last, state)
        if name.startswith(_ATTRIBUTES) and not reads and not _is_of_module(value, function):
            return True
        if name in _OUTSIDE and _is_unsafe(_outside(value, function), seen):
            return True
        last = each
    return False


def _is_of_module(name: str, function: FunctionType) -> bool:
    """Whether ``name`` is a name of a harmless module that the function uses. False for methods of containers."""
    if any(hasattr(kind, name) for kind in (dict, list, set, bytearray)):
        return False
    used = [function.__globals__.get(each) for each in function.__code__.co_names]
    return any(
        isinstance(each, ModuleType) and each.__name__ in _READING_MODULES and hasattr(each, name) for each in used
    )


def _outside(name: str, function: FunctionType) -> Any:
    """Returns the current value of a global or closure name. Returns None for the function's own variables."""
    code = function.__code__
    if name in code.co_freevars:
        try:
            return (function.__closure__ or ())[code.co_freevars.index(name)].cell_contents
        except ValueError:  # the variable of the closure has no value yet
            return _UNKNOWN
    if name in code.co_cellvars:
        return None
    return function.__globals__.get(name, getattr(builtins, name, _UNKNOWN))


def _is_unsafe(found: Any, seen: set[int]) -> bool:
    if isinstance(found, ModuleType):
        return found.__name__ not in _READING_MODULES
    return not _is_data(found) and _may_change(found, seen)


def _is_data(value: Any, depth: int = 0) -> bool:
    """Whether a value consists only of texts, numbers and containers of these.

    Such a value contains nothing that can be called.
    """
    if type(value) in _ATOMS or isinstance(value, Enum):
        return True
    if type(value) in (list, tuple, set, frozenset, dict) and len(value) <= _LOOKED_AT_MAX and depth < _DEPTH_MAX:
        parts = (*value.keys(), *value.values()) if isinstance(value, dict) else value
        return all(_is_data(each, depth + 1) for each in parts)
    return False
