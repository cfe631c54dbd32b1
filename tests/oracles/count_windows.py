"""Count windows in plain Python, from the rules of ``docs/count-windows.md`` alone. No message is ever dropped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.oracles.window_rules import Event


class Shape(NamedTuple):
    """The declaration of count windows."""

    count: int
    step: int
    final: bool


def expect(shape: Shape, events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """The results that count windows send: (key, start, end, count, total, amounts), in the order of the messages."""
    messages: dict[bytes, list[Event]] = {}
    sent = []
    for event in events:
        kept = messages.setdefault(event.key, [])
        kept.append(event)
        for begin in range(0, len(kept), shape.step):
            inside = kept[begin : begin + shape.count]
            if len(kept) <= begin + shape.count and (not shape.final or len(inside) == shape.count):
                times, amounts = [each.time_ms for each in inside], [each.amount for each in inside]
                sent.append((event.key, min(times), max(times), len(inside), sum(amounts), amounts))
    return sent
