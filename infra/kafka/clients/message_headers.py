"""The headers of a batch's messages, decoded only on access, because most processors need no headers.

Names of headers should be UTF-8, but brokers do not check them. The client library decodes all names of a message
together, so one invalid name makes all headers of the message unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from holdfast.infra.kafka.errors import HeadersUnreadable
from holdfast.infra.kafka.records import Headers, Partition


class MessageHeaders(Sequence[Headers]):
    """The headers of each message in a batch, as a sequence; ``read`` is the function that decodes a message's headers.

    Access raises HeadersUnreadable for the first message with unreadable headers. Each further access raises the same
    error without reading, because a second read would return damaged objects that crash the process.
    """

    __slots__ = ("_messages", "_offsets", "_partition", "_read", "_unreadable")

    def __init__(
        self, partition: Partition, offsets: Sequence[int], messages: Sequence[Any], read: Callable[[Any], Headers]
    ) -> None:
        self._partition, self._offsets = partition, offsets
        self._messages, self._read = messages, read
        self._unreadable: dict[int, HeadersUnreadable] = {}

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Headers: ...

    @overload
    def __getitem__(self, index: slice) -> list[Headers]: ...

    def __getitem__(self, index: int | slice) -> Headers | list[Headers]:
        if isinstance(index, slice):
            first, last, _ = index.indices(len(self._messages))
            return self._between(first, last)
        at = range(len(self._messages))[index]
        return self._between(at, at + 1)[0]

    def _between(self, first: int, last: int) -> list[Headers]:
        known = min((at for at in self._unreadable if first <= at < last), default=None) if self._unreadable else None
        found: list[Headers] = []
        try:
            # If decoding a message raises, `found` has the headers of all earlier messages. So the length of `found`
            # is the number of the unreadable message, counted from `first`.
            found.extend(map(self._read, self._messages[first : last if known is None else known]))
        except (SystemError, ValueError) as failure:
            known = first + len(found)
            self._unreadable[known] = self._error(known, failure)
        if known is not None:
            raise self._unreadable[known]
        return found

    def _error(self, index: int, failure: Exception) -> HeadersUnreadable:
        topic, number = self._partition
        offset = self._offsets[index]
        return HeadersUnreadable(
            f"The headers of the message at {topic}[{number}] offset {offset} can't be read: "
            f"{failure.__cause__ or failure}.",
            action="Correct the producer: names of headers are UTF-8. A processor with `dead_letter_topic` puts the "
            "message there without its headers.",
            topic=topic,
            partition=number,
            offset=offset,
        )
