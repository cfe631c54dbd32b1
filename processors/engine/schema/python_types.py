"""A table that maps Python types to column types: numbers, texts, dates, UUIDs, and types stored as JSON text."""

# tidy: allow-crumb because this module adapts the types of pydantic

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import pydantic

from holdfast.processors.engine.schema.types import DAY, FLOATING, INSTANT, LOCAL_TIME, TEXT, TRUTH, WHOLE, Scalar

#: The column type of each Python type. A ``datetime`` without a time zone is taken as UTC; ``NaiveDatetime`` stays
#: without a zone. SQL has no type for ``time``, ``UUID`` and ``Any``, so these become text.
BY_TYPE: Mapping[Any, Scalar] = {
    bool: TRUTH,
    int: WHOLE,
    float: FLOATING,
    str: TEXT,
    bytes: TEXT,
    dt.datetime: INSTANT,
    dt.date: DAY,
    dt.time: TEXT,
    dt.timedelta: TEXT,
    uuid.UUID: TEXT,
    pydantic.AwareDatetime: INSTANT,
    pydantic.NaiveDatetime: LOCAL_TIME,
    pydantic.PastDatetime: INSTANT,
    pydantic.FutureDatetime: INSTANT,
    Any: TEXT,
    object: TEXT,
}
_BY_SUPERCLASS = ((PurePath, TEXT), (str, TEXT), (bool, TRUTH), (int, WHOLE), (float, FLOATING))
_WITHOUT_ELEMENTS = (list, set, frozenset, tuple, dict)


def subclass_column(annotation: type) -> Scalar | None:
    """Returns the column type of a subclass of a known type; None if there is none.

    Types that pydantic defines (addresses, secrets) and collections without an element type are text.
    """
    for known, kind in _BY_SUPERCLASS:
        if issubclass(annotation, known):
            return kind
    is_text = annotation.__module__.startswith("pydantic") or annotation in _WITHOUT_ELEMENTS
    return TEXT if is_text else None
