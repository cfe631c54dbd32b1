"""The reasons why a query gets no answer. Each one has its HTTP status in ``serving.state.routes``."""

from __future__ import annotations

from typing import Any

from holdfast.infra.errors import HoldfastError


class QueryWrong(HoldfastError):
    """The query is malformed, for example a limit out of range, or a key that is no number. A retry fails again."""


class StoreUnknown(HoldfastError):
    """The processor has no store, table or global table with this name."""


class StateAway(HoldfastError):
    """No worker can answer now: the task is being restored or moved, or it is not as far as the query demands.

    A retry after ``retry_after_s`` seconds may succeed. ``waits`` is True if the worker itself will probably be able to
    answer within the time that the query may wait.
    """

    def __init__(self, message: str, *, retry_after_s: float = 1.0, waits: bool = False, **fields: Any) -> None:
        super().__init__(
            message,
            action=f"Send the query again after {retry_after_s:g} s.",
            retry_after_s=retry_after_s,
            **fields,
        )
        self.retry_after_s, self.waits = retry_after_s, waits
