"""Values that JSON changes silently: NaN becomes ``null``, bytes become text, number keys become text, sets lists.

State must be read as it was set, so ``state_fault`` refuses all of these values; a tuple may become a list. Other
programs read an output, so ``output_fault`` refuses only values that no reader could recover: NaN, infinity, bytes and
sets.

Both run for each message. ``comes_back`` and ``is_plain`` decide most values, at a cost of about a tenth of a
microsecond for a scalar and a fifth for a flat dict. Only the remaining values are walked through.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

#: Exact types that JSON returns unchanged; NaN and infinity are floats, and appear as ``null`` in the text.
_SCALARS = frozenset((str, int, float, bool, type(None)))
#: Exact types whose every value survives JSON: their text needs no check.
ALWAYS_BACK = frozenset((str, int, bool))
_only_scalars, _only_texts = _SCALARS.issuperset, frozenset((str,)).issuperset
_only_always = frozenset((*ALWAYS_BACK, type(None))).issuperset
#: How the fault of a NaN and of an infinity ends.
AS_NULL = ", which would come back as null"


def comes_back(value: Any, text: bytes) -> bool:
    """Whether a value certainly survives its JSON text unchanged; False when uncertain.

    The check is certain for flat values, and for a dict of flat dicts, the form of stored aggregates.
    """
    if type(value) is not dict:
        return type(value) in _SCALARS and is_plain(value, text)
    if not _only_texts(map(type, value)):
        return False
    for part in () if _only_scalars(map(type, value.values())) else value.values():
        kind = type(part)
        if kind is dict:
            if not _only_texts(map(type, part)) or not _only_scalars(map(type, part.values())):
                return False
        elif kind not in _SCALARS:
            return False
    return b"null" not in text


def is_plain(value: Any, text: bytes) -> bool:
    """Whether a value certainly contains no NaN, infinity, bytes or set; False when uncertain.

    The check is certain for flat values, and for a list of flat dicts, such as a join of two messages.
    """
    kind = type(value)
    if kind is dict:
        known = _only_scalars(map(type, value.values()))
    elif kind is list:
        try:
            known = _only_scalars(map(type, chain.from_iterable(map(dict.values, value))))
        except TypeError:  # not of dicts alone
            known = False
    else:
        known = kind in _SCALARS
    return known and (value is None or b"null" not in text)


def state_fault(value: Any, text: bytes) -> str | None:
    """The first part of a value that JSON would change, with its place in the value; None if JSON changes nothing."""
    return None if _surely_back(value, text) else next(_faults(value, "value", _other_type, text_keys=True), None)


def output_fault(value: Any, text: bytes) -> str | None:
    """The first NaN, infinity, bytes or set, with its place in the value; None when there is none."""
    return None if _surely_back(value, text) else next(_faults(value, "value", _in_fields, text_keys=False), None)


def number_fault(value: Any, text: bytes) -> str | None:
    """The first NaN or infinity, with its place in the value; None when there is none."""
    if b"null" not in text:
        return None
    faults = _faults(value, "value", _in_fields, text_keys=False)
    return next((fault for fault in faults if fault.endswith(AS_NULL)), None)


def _surely_back(value: Any, text: bytes) -> bool:
    """Whether a nested value certainly survives its JSON text unchanged; False when uncertain.

    A walk that also finds the place of a fault costs ten times as much, and most values have no fault.
    """
    only_known = _only_always if b"null" in text else _only_scalars
    nested = [value]
    for outer in nested:  # grows while it is read
        kind = type(outer)
        if kind is dict:
            if not _only_texts(map(type, outer)):
                return False
            parts = outer.values()
        elif kind is list or kind is tuple:
            parts = outer
        else:
            parts = (outer,)
        if only_known(map(type, parts)):
            continue
        for part in parts:
            kind = type(part)
            if kind is dict or kind is list or kind is tuple:
                nested.append(part)
            elif kind is float:
                if not math.isfinite(part):
                    return False
            elif not _only_always((kind,)):
                return False
    return True


def _faults(value: Any, path: str, other: Callable[[Any, str], Iterator[str]], *, text_keys: bool) -> Iterator[str]:
    if isinstance(value, float):
        if not math.isfinite(value):
            yield f"{path} is {value!r}{AS_NULL}"
    elif value is None or isinstance(value, (str, int)):
        return
    elif isinstance(value, dict):
        for key, part in value.items():
            if text_keys and not isinstance(key, str):
                yield f"{path} has the key {key!r}, which would come back as text"
            yield from _faults(part, f"{path}[{key!r}]", other, text_keys=text_keys)
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _faults(part, f"{path}[{index}]", other, text_keys=text_keys)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        yield f"{path} is bytes, which would come back as text"
    elif isinstance(value, (set, frozenset)):
        yield f"{path} is a set, which would come back as a list"
    else:
        yield from other(value, path)


def _other_type(value: Any, path: str) -> Iterator[str]:
    yield f"{path} is of type {type(value).__name__}, which would come back as another type"


def _in_fields(value: Any, path: str) -> Iterator[str]:
    """The faults in the fields of a dataclass or a msgspec struct.

    Other objects that JSON accepts contain no values.
    """
    names = getattr(type(value), "__struct_fields__", None)
    if names is None:
        names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else ()
    for name in names:
        yield from _faults(getattr(value, name), f"{path}.{name}", _in_fields, text_keys=False)
