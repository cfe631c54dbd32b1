"""The step ``sdf.apply_async(fn)``: awaits an async function for each message, with many calls at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.processors.engine.steps.step import VALUES, Step, StoreForm, StoreUse
from holdfast.processors.engine.store_uses import CallUse

#: Maximum milliseconds for the calls of one group of messages. The transaction around them may last at most 15 seconds.
CALLS_WITHIN_MS = 10_000
#: Maximum number of concurrent calls, even if the declaration asks for more.
CONCURRENCY_MAX = 1_000


class AsyncInvalid(BadConfiguration):
    """The declaration of an ``apply_async`` has an invalid argument."""


class AsyncCallFailed(HoldfastError):
    """A call of an ``apply_async`` function timed out or was cancelled."""


async def awaited(func: Callable[[Any], Awaitable[Any]], value: Any) -> Any:
    """Awaits a call of the user's function and returns its result.

    Raises:
        AsyncCallFailed: The function raised ``SystemExit``, which would end the process while a message is processed.
        Exception: Any exception of the function.
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
    """The declaration of a step that awaits an async user function.

    ``timeout_ms`` is the maximum duration of each call. ``known`` is a function that returns the result in a
    one-element tuple if a value needs no call, otherwise None. ``answers`` describes the store of the answers; None if
    the calls are not durable.
    """

    func: Callable[[Any], Awaitable[Any]]
    concurrency: int
    by_key: bool
    timeout_ms: int
    known: Callable[[Any], tuple[Any] | None] | None = None
    answers: CallUse | None = None

    def __call__(self, value: Any) -> Any:
        """Raises RuntimeError: the engine awaits ``func`` itself and must not call this step."""
        raise RuntimeError("a step that waits was run as one that does not")

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's async function in a tuple."""
        return (self.func,)

    def describe(self) -> str:
        """Describes in one line how many calls run at once, and whether their results keep the message order."""
        durable = "" if self.answers is None else ", durable"
        return f"apply_async: {self.concurrency} at once, {'in order' if self.by_key else 'any order'}{durable}"

    @property
    def store_use(self) -> StoreUse:
        """The kind of values in the step's store: the answers of durable calls."""
        return VALUES if self.answers is None else StoreUse(StoreForm.OWN)

    @property
    def rounds(self) -> int:
        """How many consecutive calls fit in ``CALLS_WITHIN_MS`` even if every call times out; at least 1."""
        return max(1, CALLS_WITHIN_MS // self.timeout_ms)
