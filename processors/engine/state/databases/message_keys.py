"""Range reads over the message keys of a store.

Changelog keys sort by the length of the message key, then by the message key. A range of message keys is therefore one
range of changelog keys for each length. Each of them is found by a seek.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.processors.engine.changelog.format import PREFIX_BYTES, key_prefix
from holdfast.processors.engine.state.ranges import behind

#: A function that yields the (changelog key, value) entries of a store in key order, from a given changelog key on.
Read = Callable[[bytes], Iterator[tuple[bytes, bytes]]]

_LENGTH_AT = 1


def message_key_of(key: bytes) -> bytes:
    """Returns the message key in a changelog key."""
    return key[PREFIX_BYTES : PREFIX_BYTES + int.from_bytes(key[_LENGTH_AT:PREFIX_BYTES], "big")]


def between(read: Read, low: bytes, high: bytes | None, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Yields the entries of all message keys from ``low`` to before ``high``, from the changelog key ``first`` on.

    Args:
        high: None for no end.
    """
    begin: bytes | None = max(first, _head(0) + low if not low else _head(1))
    while begin is not None:
        at, begin = begin, None
        for key, value in read(at):
            message_key = message_key_of(key)
            if message_key < low:
                begin = max(_head(len(message_key)) + low, behind(key_prefix(message_key)))
            elif high is not None and message_key >= high:
                begin = _head(len(message_key) + 1) + low
            else:
                yield key, value
                continue
            break


def beginning_with(read: Read, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Yields the entries of all message keys with this prefix, from the changelog key ``first`` on."""
    return between(read, prefix, behind(prefix) or None, max(first, _head(len(prefix)) + prefix))


def _head(length: int) -> bytes:
    return key_prefix(bytes(length))[:PREFIX_BYTES]
