"""Reads the items that the columns of an aggregation need from a run of messages: numbers, or Python objects.

- ``reader_of`` decodes only the needed fields, if ``skipping_is_safe`` shows that the skipped fields are valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from holdfast.processors.engine.aggregates.aggregation import Aggregation
from holdfast.processors.engine.aggregates.columns import Unfit, numbers_of, struct_of

#: In messages of up to this many bytes, every number without an exponent is in the range of a float.
DIGITS_MAX = 300

#: Exceptions that are not subclasses of Exception. If a user's function raises one of these, the message fails, too.
ENDING = (SystemExit, GeneratorExit)

_decode_json = msgspec.json.Decoder().decode
_ZERO, _E, _PLUS, _LOWER = ord("0"), ord("e"), ord("+"), 0x20

#: Returns the items of each column: numbers, a list of Python objects, or None for a count.
Reader = Callable[[Sequence[bytes]], list[Any]]


def reader_of(aggregation: Aggregation) -> Reader:
    """Returns the function that reads the items of all columns from JSON messages.

    The function raises Unfit for messages that it can't read.
    """
    fields = list(dict.fromkeys(made.of for made in aggregation.columns.values() if isinstance(made.of, str)))
    narrow = None
    if not any(made.kind != "count" and not isinstance(made.of, str) for made in aggregation.columns.values()):
        with suppress(Unfit):
            narrow = msgspec.json.Decoder(struct_of("Row", fields, Any, _ABSENT)).decode
    readers = [(field, attrgetter(f"field_{number}")) for number, field in enumerate(fields)]

    def read(values: Sequence[bytes]) -> list[Any]:
        try:
            if narrow is not None and skipping_is_safe(values):
                rows = list(map(narrow, values))
                raw: dict[Any, list[Any]] = {field: list(map(read_field, rows)) for field, read_field in readers}
            else:
                messages = list(map(_decode_json, values))
                raw = {field: [message[field] for message in messages] for field in fields}
                raw.update(
                    (made.of, [made.of(message) for message in messages])
                    for made in aggregation.columns.values()
                    if callable(made.of)
                )
                raw[None] = messages
        # After Unfit, the messages are processed one by one, so that the error is raised for the right message.
        except (Exception, *ENDING) as failure:
            raise Unfit from failure
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

    return read


class _Absent:
    """Marks a missing field. No column accepts this type, so a missing field raises Unfit."""


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
