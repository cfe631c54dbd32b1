"""Finds values that JSON changes silently.

NaN and infinity become ``null``, bytes become text, number keys become text keys, and sets become lists.

The store must return a state value unchanged, so ``state_fault`` finds all of these changes. Only a tuple may become a
list. For outputs, which other programs read, ``output_fault`` finds only values that no reader can recover: NaN,
infinity, bytes and sets.

The check runs for each message. The fast functions ``comes_back`` and ``is_plain`` decide most values, in about 0.1
microseconds for a scalar and 0.2 for a flat dict. If they return False, the value is checked part by part.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

#: Types whose values JSON returns unchanged, except the floats NaN and infinity, which JSON writes as ``null``. Values
#: of their subclasses are not included.
_SCALARS = frozenset((str, int, float, bool, type(None)))
#: Types whose values JSON always returns unchanged, so the JSON text of such a value needs no check. Values of their
#: subclasses are not included.
ALWAYS_BACK = frozenset((str, int, bool))
_only_scalars, _only_texts = _SCALARS.issuperset, frozenset((str,)).issuperset
_only_always = frozenset((*ALWAYS_BACK, type(None))).issuperset
#: The end of the error text for NaN and infinity.
AS_NULL = ", which would come back as null"


def comes_back(value: Any, text: bytes) -> bool:
    """Whether decoding the JSON ``text`` certainly returns an equal value. False means "unknown", not "different".

    The check can decide flat values, and a dict of flat dicts, which is the form of stored aggregates.
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
    """Whether a value certainly contains no NaN, infinity, bytes or set. False means "unknown", not "it contains one".

    The check can decide flat values, and a list of flat dicts, for example a join of two messages.
    """
    kind = type(value)
    if kind is dict:
        known = _only_scalars(map(type, value.values()))
    elif kind is list:
        try:
            known = _only_scalars(map(type, chain.from_iterable(map(dict.values, value))))
        except TypeError:  # raised if an item of the list is not a dict
            known = False
    else:
        known = kind in _SCALARS
    return known and (value is None or b"null" not in text)


def state_fault(value: Any, text: bytes) -> str | None:
    """Describes the first part of a value that JSON would change, with its path in the value; None if there is none."""
    return None if _surely_back(value, text) else next(_faults(value, "value", _other_type, text_keys=True), None)


def output_fault(value: Any, text: bytes) -> str | None:
    """Describes the first NaN, infinity, bytes or set in a value and its path in the value; None if there is none."""
    return None if _surely_back(value, text) else next(_faults(value, "value", _in_fields, text_keys=False), None)


def number_fault(value: Any, text: bytes) -> str | None:
    """Describes the first NaN or infinity in a value and its path in the value; None if there is none."""
    if b"null" not in text:
        return None
    faults = _faults(value, "value", _in_fields, text_keys=False)
    return next((fault for fault in faults if fault.endswith(AS_NULL)), None)


def _surely_back(value: Any, text: bytes) -> bool:
    """Whether decoding the JSON ``text`` of a nested value certainly returns an equal value. False means "unknown".

    Callers use this check first, because it is ten times as fast as ``_faults``. ``_faults`` runs only if the result is
    False, to find the part of the value that JSON would change.
    """
    only_known = _only_always if b"null" in text else _only_scalars
    nested = [value]
    for outer in nested:  # The loop also visits nested parts, because they are appended to this list.
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
    """Describes the values that JSON would change in the fields of a dataclass or a msgspec struct.

    For an object of another type, nothing is reported.
    """
    names = getattr(type(value), "__struct_fields__", None)
    if names is None:
        names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else ()
    for name in names:
        yield from _faults(getattr(value, name), f"{path}.{name}", _in_fields, text_keys=False)
