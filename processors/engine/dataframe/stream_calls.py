"""``apply_async``: the method of a stream that waits for other systems."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

from holdfast.processors.engine.dataframe.async_calls import (
    CALLS_WITHIN_MS,
    CONCURRENCY_MAX,
    AsyncCall,
    AsyncInvalid,
)
from holdfast.processors.engine.dataframe.given import check_function
from holdfast.processors.engine.dataframe.node import Node

Stream = TypeVar("Stream")


class StreamCalls(Generic[Stream]):
    """The method of a stream that waits for other systems."""

    def apply_async(
        self: Any,
        func: Callable[[Any], Awaitable[Any]],
        *,
        concurrency: int = 16,
        order: Literal["key", "none"] = "key",
        timeout: float | timedelta = 5.0,
    ) -> Stream:
        """Replaces each value by what ``func`` answers; many calls wait at once, inside the transaction.

        The messages stay in their order. A call may be repeated after a crash or an aborted commit; its result is
        sent once. It comes before steps with state and outputs of its stream.

        Args:
            func: An async function of the value.
            concurrency: Calls that wait at once, 1 to 1,000, for each task.
            order: ``key`` begins a call when the one before of its key is over; ``none`` when there is room.
            timeout: Seconds or a timedelta after which a call has failed, at most 10 seconds.

        Raises:
            AsyncInvalid: ``func`` is no async function, or an argument is out of range.
            StepInvalid: ``func`` takes other arguments.
        """
        called = getattr(type(func), "__call__", None)  # noqa: B004 # of an object that is called
        if not (inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(called)):
            raise AsyncInvalid(
                f"`apply_async` got {func!r}, expected an async function.",
                action="Write `async def`, or use `apply` for a function that does not wait.",
                seen=repr(func)[:80],
            )
        check_function(func, "`apply_async`", ("value",))
        if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
            raise AsyncInvalid(
                f"`concurrency` is {concurrency!r}, expected a whole number from 1 to {CONCURRENCY_MAX:,}.",
                action="Correct it, or leave it out.",
                seen=repr(concurrency)[:80],
            )
        if order not in ("key", "none"):
            raise AsyncInvalid(f"`order` is {order!r}, expected `key` or `none`.", action="Correct it.", seen=order)
        call = AsyncCall(func, concurrency, order == "key", _timeout_ms(timeout))
        made: Stream = self._then(Node("apply", call))
        return made


def _timeout_ms(timeout: Any) -> int:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if type(seconds) not in (int, float) or not 0.001 <= seconds <= CALLS_WITHIN_MS / 1000:
        raise AsyncInvalid(
            f"`timeout` is {timeout!r}, expected seconds or a timedelta, from 0.001 to {CALLS_WITHIN_MS // 1000} "
            "seconds: the transaction of the message must not end before the call.",
            action="Correct it. What takes longer belongs in a program of its own, with a topic before and behind it.",
            seen=repr(timeout)[:80],
        )
    return int(seconds * 1000)


def call_of(source: Node) -> tuple[list[Node], Node] | None:
    """The steps before the first step that waits, and that step; None for a stream without one.

    Raises:
        AsyncInvalid: Something beside or before it has state or outputs, or gives several values.
    """
    waiting = [node for node in source.walk() if isinstance(node.function, AsyncCall)]
    if not waiting:
        return None
    before, node = list[Node](), source
    while node is not waiting[0]:
        if len(node.children) != 1:
            raise _misplaced("The stream has a branch before `apply_async`.")
        before.append(node)
        node = node.children[0]
        if node.store is not None or node.topic is not None or node.window is not None or node.expand:
            raise _misplaced("A step before `apply_async` has state, sends to a topic, or gives several values.")
    if len(waiting) > 1:
        raise _misplaced("A stream has two steps that wait.")
    return before[1:], node


def _misplaced(sentence: str) -> AsyncInvalid:
    return AsyncInvalid(
        f"{sentence} Calls wait for many messages at once, and a message changes state and outputs as a whole.",
        action="Put `apply_async` first, behind filters and functions without state; or send its results to a topic, "
        "and read that topic for the rest.",
    )
