"""Reads from many JSON messages the items that the columns of an aggregation need: numbers, or Python objects.

``reader_of`` decodes only the needed fields, if ``skipping_is_safe`` shows that the skipped fields are valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from holdfast.processors.engine.aggregates.aggregation import Aggregation
from holdfast.processors.engine.aggregates.columns import Unfit, numbers_of, struct_of
from holdfast.processors.engine.expressions.of_runs import NoRuns, run_steps
from holdfast.processors.engine.expressions.steps import ColumnStep

#: In a message of at most this many bytes, every number without an exponent is in the range of a float.
DIGITS_MAX = 300

#: Exceptions that are not subclasses of Exception. If a user's function raises such an exception, the message fails, as
#: with any other exception.
ENDING = (SystemExit, GeneratorExit)

_decode_json = msgspec.json.Decoder().decode
_ZERO, _E, _PLUS, _LOWER = ord("0"), ord("e"), ord("+"), 0x20


class Picked(NamedTuple):
    """The items that the columns read from consecutive messages. For each column: numbers, a list, or None for a count.

    ``kept`` has the indexes of the messages that passed the filters of earlier steps. None means that all passed.
    """

    items: list[Any]
    kept: list[int] | None = None


#: A function that reads the items of consecutive JSON messages.
Reader = Callable[[Sequence[bytes]], Picked]


def reader_of(aggregation: Aggregation, steps: Sequence[ColumnStep] = ()) -> Reader:
    """Returns a function that reads the items of all columns from JSON messages.

    The function first applies ``steps`` to the messages. It raises Unfit for messages that it can't read.

    Raises:
        Unfit: A step can only process one message at a time.
    """
    fields = list(dict.fromkeys(made.of for made in aggregation.columns.values() if isinstance(made.of, str)))
    of_fields = not any(made.kind != "count" and not isinstance(made.of, str) for made in aggregation.columns.values())
    if steps:
        return _reader_behind(steps, aggregation, fields, of_fields=of_fields)
    narrow = None
    if of_fields:
        with suppress(Unfit):
            narrow = _narrow(fields)

    def read(values: Sequence[bytes]) -> Picked:
        try:
            if narrow is not None and skipping_is_safe(values):
                raw: dict[Any, list[Any]] = narrow(values)
            else:
                messages = list(map(_decode_json, values))
                raw = {field: [message[field] for message in messages] for field in fields}
                raw.update(
                    (made.of, [made.of(message) for message in messages])
                    for made in aggregation.columns.values()
                    if callable(made.of)
                )
                raw[None] = messages
        # The error of a user function is not raised here. After Unfit, the messages are processed one by one, and the
        # function raises the error again for its message.
        except (Exception, *ENDING) as failure:
            raise Unfit from failure
        return Picked(_items(aggregation, raw))

    return read


def _reader_behind(
    steps: Sequence[ColumnStep], aggregation: Aggregation, fields: Sequence[str], *, of_fields: bool
) -> Reader:
    """Implements ``reader_of`` for a stream with column expressions (``steps``) before the aggregation.

    Raises Unfit if a column reads something other than a field.
    """
    if not of_fields:
        raise Unfit
    try:
        made = run_steps(steps, fields)
    except NoRuns as failure:
        raise Unfit from failure
    narrow = _narrow(made.fields)

    def read(values: Sequence[bytes]) -> Picked:
        try:
            if skipping_is_safe(values):
                raw = narrow(values)
                for field in made.asked:
                    if any(each is _ABSENT for each in raw[field]):
                        raise Unfit
            else:
                messages = list(map(_decode_json, values))
                raw = {field: [message[field] for message in messages] for field in made.fields}
            kept, columns = made.run([*raw.values()], len(values))
        except (Exception, *ENDING) as failure:
            raise Unfit from failure
        return Picked(_items(aggregation, dict(zip(fields, columns, strict=True))) if kept else [], kept)

    return read


def _narrow(fields: Sequence[str]) -> Callable[[Sequence[bytes]], dict[Any, list[Any]]]:
    """Returns a function that decodes only these fields of messages; a missing field becomes ``_ABSENT``."""
    decode = msgspec.json.Decoder(struct_of("Row", fields, Any, _ABSENT)).decode
    readers = [(field, attrgetter(f"field_{number}")) for number, field in enumerate(fields)]

    def read(values: Sequence[bytes]) -> dict[Any, list[Any]]:
        rows = list(map(decode, values))
        return {field: list(map(read_field, rows)) for field, read_field in readers}

    return read


def _items(aggregation: Aggregation, raw: Mapping[Any, list[Any]]) -> list[Any]:
    numbers: dict[Any, Any] = {}
    items: list[Any] = []
    for made in aggregation.columns.values():
        if made.kind == "count":
            items.append(None)
        elif made.kind in ("last", "reduce"):
            items.append(raw[made.of])
        else:
            if made.of not in numbers:
                numbers[made.of] = numbers_of(raw[made.of])
            items.append(numbers[made.of])
    return items


class _Absent:
    """Stands for a missing field.

    No column accepts this type. Operators raise an error for it, except ``is``, ``is not``, ``in`` and the ``%`` of a
    text.
    """

    def __eq__(self, other: object) -> bool:
        raise TypeError("a missing field")

    def __bool__(self) -> bool:
        raise TypeError("a missing field")

    __hash__ = None  # type: ignore[assignment]


_ABSENT = _Absent()


def skipping_is_safe(values: Sequence[bytes]) -> bool:
    """Whether decoding only some fields fails for the same messages as decoding all fields.

    The decoder checks the syntax of skipped fields. It does not check that they are UTF-8, or that their numbers fit
    into a float. This function therefore looks for bytes that are not UTF-8, and for exponents such as ``1E+400``.
    """
    if max(map(len, values)) > DIGITS_MAX:
        return False
    text = b"\n".join(values)
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
    codes = np.frombuffer(text, np.uint8)
    exponents = np.flatnonzero(((codes[1:-1] | _LOWER) == _E) & (codes[:-2] - _ZERO < 10))
    if not len(exponents):
        return True
    behind = codes[exponents + 2]
    return not bool(((behind - _ZERO < 10) | (behind == _PLUS)).any())
