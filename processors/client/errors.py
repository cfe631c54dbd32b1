"""The errors of ``StateClient`` in addition to those that a worker's answer names (``engine.queries.errors``)."""

from __future__ import annotations

from typing import Any

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.infra.masking import masked
from holdfast.processors.engine.queries.errors import StateAway


class StateRefused(HoldfastError):
    """A worker refuses the token of a query. The token is missing or wrong, or it reads other stores only."""


class NoWorkerAnswers(StateAway):
    """No worker of the processor is known, or none of them answers."""

    def __init__(self, message: str, *, action: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.action = masked(action)


class StateClientWrong(BadConfiguration):
    """The arguments of a ``StateClient`` contradict each other, or the client was used after its end."""
