"""Steps that wait for other systems: ``sdf.apply_async(fn)`` awaits a coroutine for each message, many concurrently."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.processors.engine.steps.step import Step

#: Calls that start together end within this time, in milliseconds, because a transaction lasts 15 seconds at most.
CALLS_WITHIN_MS = 10_000
#: Maximum calls in flight, regardless of the requested number.
CONCURRENCY_MAX = 1_000


class AsyncInvalid(BadConfiguration):
    """An ``apply_async`` can't run as declared."""


class AsyncCallFailed(HoldfastError):
    """A call of ``apply_async`` did not answer in time, or was cancelled."""


async def awaited(func: Callable[[Any], Awaitable[Any]], value: Any) -> Any:
    """The answer of a call.

    Raises:
        AsyncCallFailed: The function raised ``SystemExit``, which would end the process in mid-message.
        Exception: What the function raised.
    """
    try:
        return await func(value)
    except SystemExit as ending:
        name = getattr(func, "__qualname__", repr(func))
        raise AsyncCallFailed(
            f"{name} raised SystemExit({ending}), which would end the process in mid-message.",
            action="Raise an Exception for a message that can't be processed; call `Application.stop()` to stop.",
            function=name,
        ) from ending


@dataclass(frozen=True, slots=True)
class AsyncCall(Step):
    """How the calls of one step are made; ``timeout_ms`` limits each call.

    ``known`` returns the answer in a tuple for a value that needs no call, else None.
    """

    func: Callable[[Any], Awaitable[Any]]
    concurrency: int
    by_key: bool
    timeout_ms: int
    known: Callable[[Any], tuple[Any] | None] | None = None

    def __call__(self, value: Any) -> Any:
        """Never called: the engine awaits ``func`` itself, before the later steps run."""
        raise RuntimeError("a step that waits was run as one that does not")

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's function."""
        return (self.func,)

    def describe(self) -> str:
        """How the calls are made, in a line."""
        return f"apply_async: {self.concurrency} at once, {'in order' if self.by_key else 'any order'}"

    @property
    def rounds(self) -> int:
        """How many consecutive timeouts fit in the time limit."""
        return max(1, CALLS_WITHIN_MS // self.timeout_ms)
