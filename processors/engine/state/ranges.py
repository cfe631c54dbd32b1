"""Reads of a range of state keys, in their order, uncommitted writes included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from heapq import merge

from holdfast.processors.engine.state.store import StoreState


def state_keys_between(
    state: StoreState, message_key: bytes, after: str, before: str, limit: int
) -> list[tuple[str, bytes]]:
    """State keys of one message key with their stored values, in key order.

    Args:
        message_key: The message key.
        after: The first key is greater than this one.
        before: The last key is less than this one.
        limit: The most keys to return.
    """
    first, last = after.encode() + b"\x00", before.encode()
    writes = {key: raw for key, raw in state.uncommitted(message_key).items() if first <= key < last}
    stored = state.stored(message_key, first)
    found: list[tuple[str, bytes]] = []
    with closing(stored):
        # Of equal keys, the uncommitted write comes first: it has rank 0.
        ranked = merge(_ranked(iter(sorted(writes.items())), 0), _ranked(stored, 1))
        former: bytes | None = None
        for key, _, raw in ranked:
            if key >= last or len(found) == limit:
                break
            if key != former and raw is not None:
                found.append((key.decode(), raw))
            former = key
    return found


def _ranked(items: Iterator[tuple[bytes, bytes | None]], rank: int) -> Iterator[tuple[bytes, int, bytes | None]]:
    return ((key, rank, raw) for key, raw in items)
