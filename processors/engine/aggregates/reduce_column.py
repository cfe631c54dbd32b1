"""The column of ``Reduce``: a value that user functions compute, message by message.

A row holds a number as a Python object, and any other value as JSON. JSON is decoded for each call, because a function
may change its argument. A message whose new value can't be stored fails. The value in a row therefore always equals its
stored form.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from holdfast.processors.engine.aggregates.columns import Column, Unfit, as_json, grown
from holdfast.processors.engine.aggregates.kernels import Places, Segments
from holdfast.processors.engine.aggregates.message_columns import ENDING
from holdfast.processors.engine.aggregates.window_aggregates import Reduce
from holdfast.processors.engine.changelog.format import HEAD_SIZE, ValueNotStorable, decode_json, encode_value

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class _Empty:
    """Marks a row that has no value. None can't mark such a row, because None is a valid value."""


_EMPTY = _Empty()
Raw = msgspec.Raw


class ReduceColumn(Column):
    """A column of ``Reduce``, with the reduced value of each row.

    The user functions are called in the order of the messages. If ``run`` raises Unfit, the same messages are then
    processed one by one, and the functions are called again.
    """

    form = b"[%b]"

    def __init__(self, made: Reduce) -> None:
        assert made.reducer is not None
        assert made.initializer is not None
        self._reducer, self._initializer = made.reducer, made.initializer
        self._values: Any = np.zeros(0, object)

    def grow(self, capacity: int) -> None:
        self._values = grown(self._values, capacity)

    def check(self, stored: Sequence[Any]) -> None:
        if not all(held is None or (type(held) is list and held) for held in stored):
            raise Unfit
        self._kept(stored)

    def load(self, rows: Places, stored: Sequence[Any]) -> None:
        self._values[rows] = _objects(self._kept(stored))

    def clear(self, rows: Places) -> None:
        self._values[rows] = _EMPTY

    def run(self, items: Any, segments: Segments) -> tuple[list[Any], list[Any]]:
        """Returns two lists: the value after each message, and the last value of each row."""
        reducer, initializer = self._reducer, self._initializer
        rows = self._values[segments.rows].tolist()
        counts = segments.lasts - segments.starts + 1
        places = segments.unsorted(np.repeat(np.arange(len(rows)), counts)).tolist()
        after: list[Any] = []
        add = after.append
        try:
            for place, item in zip(places, items, strict=True):
                held = rows[place]
                if type(held) is Raw:
                    made = reducer(decode_json(held), item)
                elif held is _EMPTY:
                    made = initializer(item)
                else:
                    made = reducer(held, item)
                if type(made) is not int or not _LEAST <= made <= _MOST:
                    made = _kept(made)
                rows[place] = made
                add(made)
        # The error of a user function is not raised here. After Unfit, the messages are processed one by one, and the
        # function raises the error again for its message.
        except (Exception, *ENDING) as failure:
            raise Unfit from failure
        return after, rows

    def shown(self, ran: tuple[list[Any], list[Any]], segments: Segments) -> list[Any]:
        return ran[0]

    def results(self, rows: Places) -> list[Any]:
        held = self._values[rows].tolist()
        return [decode_json(each) if type(each) is Raw else None if each is _EMPTY else each for each in held]

    def keep(self, segments: Segments, ran: tuple[list[Any], list[Any]]) -> None:
        self._values[segments.rows] = _objects(ran[1])

    def longest(self, ran: tuple[list[Any], list[Any]]) -> int:
        """Returns the length in bytes of the longest final value in ``ran``, which is the result of ``run``."""
        return max((len(bytes(made)) for made in ran[1] if type(made) is Raw), default=0)

    def stored(self, rows: Places) -> list[list[bytes]]:
        return [as_json(self._values[rows].tolist())]

    @staticmethod
    def _kept(stored: Sequence[Any]) -> list[Any]:
        try:
            return [_EMPTY if held is None else _kept(held[0]) for held in stored]
        except ValueNotStorable as failure:
            raise Unfit from failure


def _kept(made: Any) -> Any:
    """Converts a value to the form that a row holds; raises ValueNotStorable for a value that a store can't hold."""
    kind = type(made)
    if (kind is int and _LEAST <= made <= _MOST) or (kind is float and isfinite(made)) or kind is bool or made is None:
        return made
    return Raw(encode_value(made, 0)[HEAD_SIZE:])


def _objects(values: Sequence[Any]) -> Any:
    return np.fromiter(values, object, len(values))
