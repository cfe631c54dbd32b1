"""Prevents that a message fails because of a result that earlier messages made.

A message may close a window of its key, or bring a result that was held back. Earlier messages made this result
(``OwedResult``). A later step of the stream may raise an error for it. The message would then fail. Each later message
of the key would fail, too, because the window would stay open. Therefore only the result is undone, and the message
succeeds::

    message ──► window ──► result 1 ──► later steps          state and outputs of result 1 stay
                  │        result 2 ──► later steps raise     state and outputs of result 2 are undone
                  └──► window closed; the failure policy decides about result 2 when the message has succeeded

Invariants:
    - The failure policy decides about a result only if the rest of the message succeeds. Otherwise the window stays
      open, and a later message sends its result again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.record_times import RecordTimeRefused
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.steps.outbox import Outboxes
from holdfast.processors.engine.windows.stored import Closing, OwedResult, Result

#: If a user function raises one of these exceptions, only its message or its result fails, and the worker continues.
_ENDING = (SystemExit, GeneratorExit)


class Mark(NamedTuple):
    """The lengths of undo logs and outboxes before a result is sent.

    If the result fails, all later writes are undone, and all later outputs are removed.
    """

    undo_logs: list[int]
    outboxes: dict[str, int]


class ResultsAside:
    """The failed results of one message of a task.

    Args:
        states: The task's stores.
        outboxes: The task's outboxes.
        decide: Applies the failure policy to the failed results of a message; raises an error to stop the worker.
    """

    def __init__(
        self,
        states: Mapping[str, StoreState],
        outboxes: Outboxes,
        decide: Callable[[Sequence[tuple[Closing, BaseException]]], None],
    ) -> None:
        self._states, self._outboxes, self._decide = states, outboxes, decide
        #: The failed results of the current message. The list is never replaced, because compiled steps refer to it.
        self.failed: list[tuple[Closing, BaseException]] = []
        #: A function of an error. It returns whether the message must be processed again, because the error came only
        #: from the worker's slow clock.
        self.repeats: Callable[[BaseException], bool] = _never
        #: The error because of which the message is processed again.
        self.repeated: BaseException | None = None

    def mark(self) -> Mark:
        """Returns the present lengths of undo logs and outboxes. ``fails`` needs them if the next result fails.

        Call it before the later steps get a result.
        """
        logs = [len(state.undo_log) for state in self._states.values()]
        return Mark(logs, {topic: len(box.values) for topic, box in self._outboxes.items()})

    def fails(self, result: Result, raw_key: bytes, mark: Mark, error: BaseException) -> None:
        """Undoes the writes and outputs of the later steps for a result.

        Raises ``error`` if the message itself must fail.
        """
        if not isinstance(result, OwedResult) or not isinstance(error, (Exception, *_ENDING)):
            raise error
        if isinstance(error, (StateFailed, FormatUnknown)):
            raise error  # the state itself can't be read, so the failure policy may not skip this result
        if isinstance(error, RecordTimeRefused) and self.repeats(error):
            self.repeated = error
            raise error
        for state, length in zip(self._states.values(), mark.undo_logs, strict=True):
            state.undo_message(length)
        for topic, box in self._outboxes.items():
            box.keep(mark.outboxes.get(topic, 0))
        self.failed.append((Closing("", raw_key, result.result, result.start), error))

    def decide(self) -> None:
        """Applies the failure policy to the failed results. Raises an error if the policy stops the worker.

        Call it when all other steps have succeeded.
        """
        failed = self.failed.copy()
        self.failed.clear()
        self._decide(failed)


def _never(error: BaseException) -> bool:
    return False
