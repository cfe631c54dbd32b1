"""Errors of sinks: those that a sink raises to say what the worker should do, and those that stop the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.infra.errors import BadConfiguration, HoldfastError

if TYPE_CHECKING:
    from holdfast.processors.engine.sinks.sink import SinkBatch, SinkItem


class SinkInvalid(BadConfiguration):
    """The argument of ``sdf.sink`` is not a sink, or an argument of a sink has a wrong value."""


class SinkFailed(HoldfastError):
    """A sink raised an error. The work since the last commit is not committed."""


class SinkBackpressureError(HoldfastError):
    """A sink's ``write`` or ``flush`` raises this error if its system accepts no data at the moment.

    Args:
        retry_after: The seconds after which the worker tries again.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"A sink takes nothing for {retry_after} s.", action="Wait: the worker tries again by itself.")
        self.retry_after = float(retry_after)


class SinkRowsRefused(HoldfastError):
    """A sink's ``write`` or ``flush`` raises this error if its system will never accept some of the results.

    The worker abandons the commit and processes the messages again. The message of a refused result then fails with
    ``SinkRowRefused``, and the processor's policy for failed messages decides: stop, skip, or dead letter.

    Args:
        batch: The batch of the refused results.
        rows: Each refused result, with a sentence that names the row and says why it was refused.
        action: The edit that lets the system accept the row.
    """

    def __init__(
        self,
        batch: SinkBatch,
        rows: Sequence[tuple[SinkItem, str]],
        action: str = "Correct the value, or the rule of the other system that refuses it.",
    ) -> None:
        super().__init__(f"A sink refused {len(rows)} results: {rows[0][1]}", action=action)
        self.batch, self.rows = batch, tuple(rows)


class SinkRowRefused(HoldfastError):
    """The system behind a sink refuses the result of this message."""


class SinkFenced(HoldfastError):
    """A sink's ``write`` or ``flush`` raises this error if another worker has one of the partitions now.

    The worker discards its work since the last commit, and joins its group again.
    """
