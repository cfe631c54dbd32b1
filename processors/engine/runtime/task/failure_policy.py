"""Decides about a failed message: stop the worker (default), write a dead letter, or skip the message.

This module also calls the user's callbacks about messages, for example ``on_message_processed``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import HeadersUnreadable
from holdfast.infra.kafka.records import Headers, Partition
from holdfast.infra.log import get_logger
from holdfast.infra.masking import masked
from holdfast.infra.schemas.errors import SchemaRegistryFailed
from holdfast.processors.engine.aggregates.aggregation import AggregationFailed
from holdfast.processors.engine.changelog.names import CHANGELOG_SUFFIX, is_repartition_topic
from holdfast.processors.engine.dataframe.message_context import MessageContext, current_message
from holdfast.processors.engine.dataframe.results_aside import ResultsAside
from holdfast.processors.engine.formats.serialization import ValueUnreadable, ValueUnwritable, headers_size
from holdfast.processors.engine.record_size import UNLIMITED, RecordTooLarge, too_large
from holdfast.processors.engine.record_times import ANY_TIME, RecordTimeRefused, RecordTimes
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun, Run
from holdfast.processors.engine.runtime.task.arrivals import Arrivals
from holdfast.processors.engine.runtime.task.facts import TaskFacts
from holdfast.processors.engine.runtime.task.failed_message import (
    FailedMessage,
    OnFailure,
    failed_result,
    failed_slot,
    failed_timer,
)
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.timers import Due
from holdfast.processors.engine.steps.outbox import Outboxes, Output
from holdfast.processors.engine.windows.stored import Closing

_log = get_logger("runtime.failures")
_users_log = logging.getLogger("holdfast.processing")

#: A user's callback for a failed message. It gets the error, the message and a logger, and returns True to skip the
#: message.
OnProcessingError = Callable[[Exception, FailedMessage, logging.Logger], bool]
#: A callback like ``OnProcessingError``, for a message that can't be read, or for one whose output can't be written.
OnConsumerError = Callable[[Exception, "UnreadMessage", logging.Logger], bool]
OnProducerError = OnProcessingError
#: A user's callback that is called with topic, partition and offset of each processed message.
OnMessageProcessed = Callable[[str, int, int], Any]

#: Errors of a message that can't be read.
UNREADABLE = ValueUnreadable, HeadersUnreadable
#: The first ``LOG_FIRST`` dead letters are logged, then only every ``LOG_EVERY``-th.
LOG_FIRST = 5
LOG_EVERY = 1000
#: Text that is added to a dead letter from a repartition topic. Such a dead letter can't be replayed, because a replay
#: sends the message to a source topic.
SEND_AGAIN = (
    "This record is of a topic of the processor's own, behind `group_by` or a join by a foreign key. After a "
    "correction, send the message of the source again."
)
#: Text that is added to the error if a table sends a changed row to a group (``group_by``), and this change fails. The
#: change never becomes a dead letter.
NOT_ASIDE = (
    "The message is a change of a table's row for its group. It is neither skipped nor put aside: the group would stay "
    "wrong, because the row is not sent again."
)
#: Maximum characters of an error's text, so that the headers do not make the dead letter too large.
REASON_MAX = 2_000
#: The names of all headers that describe a failure in a dead letter.
FAILURE_HEADERS = frozenset(
    f"holdfast.{name}"
    for name in (
        *("error", "error.type", "error.action", "topic", "partition", "offset", "timestamp", "processor"),
        *("code_version", "left_out", "timer", "schedule", "kind"),
    )
)


class ProcessingFailed(HoldfastError):
    """A message failed, and it can't be skipped or become a dead letter. The worker stops."""

    cause = "poison-message"


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The user's callbacks of an application. A callback that was not given is None."""

    processing: OnProcessingError | None = None
    consumer: OnConsumerError | None = None
    producer: OnProducerError | None = None
    processed: OnMessageProcessed | None = None

    @property
    def skip(self) -> bool:
        """Whether a callback may skip a failed message."""
        return (self.processing, self.consumer, self.producer) != (None, None, None)


class Failures:
    """Applies the failure policy to every failure in one task. The failed work is already undone.

    Args:
        task: The task's inputs and positions, which show the offset of the last message.
        states: The task's stores.
        outboxes: The outboxes that get the dead letters.
    """

    def __init__(self, task: TaskFacts, states: Mapping[str, StoreState], outboxes: Outboxes) -> None:
        self._task, self._outboxes = task, outboxes
        self.arrivals = Arrivals()
        #: Results that earlier messages made and the current message sends, for example by closing a window. If one of
        #: these results fails, the failure policy decides about the result, and not about the current message.
        self.aside = ResultsAside(states, outboxes, self._owed)
        #: The failure policy that the current call of the task uses.
        self.on_failure: OnFailure | None = None
        #: The error with which the policy stopped the worker. This error may arrive again, as the error of the message.
        #: Then it is raised unchanged, and the policy does not decide again.
        self._stops: BaseException | None = None

    def decide(self, on_failure: OnFailure, *failed: FailedMessage) -> None:
        """Applies the policy to each failure, adds the dead letters to the outboxes, and counts the failures.

        Adds nothing if the policy stops the worker.
        """
        for each in failed:
            if each.error is self._stops:
                raise each.error
        try:
            decided = [(each, on_failure(each)) for each in failed]
        except BaseException as error:
            self._stops = error
            raise
        for each, instead in decided:
            if instead is not None:
                self._outboxes.add(instead)
            self.arrivals.failed(each, put_aside=instead is not None)

    def windows(self, on_failure: OnFailure) -> Callable[[str, Closing, BaseException], None]:
        """Returns the policy for windows that close without a message, for example at a commit."""
        return lambda topic, at, error: self.decide(on_failure, failed_result(*self._last_of(topic), at, error))

    def timers(self, on_failure: OnFailure) -> Callable[[str, Due, BaseException], None]:
        """Returns the policy for timers."""
        return lambda topic, due, error: self.decide(on_failure, failed_timer(*self._last_of(topic), due, error))

    def slot(self, on_failure: OnFailure, schedule: str, slot_ms: int, error: BaseException) -> None:
        """Applies the policy to a slot of a schedule (a time at which its function must run) whose function failed."""
        self.decide(on_failure, failed_slot(*self._last_of(self._task.inputs[0]), schedule, slot_ms, error))

    def _owed(self, failed: Sequence[tuple[Closing, BaseException]]) -> None:
        """Applies the policy to failed results that earlier messages made, for example of a window that closes now."""
        assert self.on_failure is not None
        last = self.last_message()
        at = Partition(last.topic, last.partition), last.offset
        self.decide(self.on_failure, *(failed_result(*at, closing, error) for closing, error in failed))

    def _last_of(self, topic: str) -> tuple[Partition, int]:
        """Returns partition and offset of the last processed message of an input topic."""
        return Partition(topic, self._task.partition), self._task.positions[topic] - 1

    def last_message(self) -> MessageContext:
        """Topic, partition and offset of the current message; without one, of the last message of the first input."""
        topic = self._task.inputs[0]
        return current_message() or MessageContext(topic, self._task.partition, self._task.positions[topic] - 1)


class UnreadMessage:
    """A message that can't be read, as the argument of ``on_consumer_error``.

    It has the methods of a message of confluent-kafka.
    """

    def __init__(self, failed: FailedMessage) -> None:
        self._failed = failed

    def topic(self) -> str:
        """Returns the topic."""
        return self._failed.partition.topic

    def partition(self) -> int:
        """Returns the partition."""
        return self._failed.partition.number

    def offset(self) -> int:
        """Returns the offset."""
        return self._failed.offset

    def key(self) -> bytes | None:
        """Returns the bytes of the key."""
        return self._failed.key

    def value(self) -> bytes | None:
        """Returns the bytes of the value."""
        return self._failed.value

    def headers(self) -> Headers:
        """Returns the headers; None if they can't be read."""
        return self._failed.headers

    def timestamp(self) -> int:
        """Returns the timestamp, in milliseconds since 1970."""
        return self._failed.timestamp_ms

    def __repr__(self) -> str:
        """Returns topic, partition and offset of the message as text."""
        return self._failed.place


class CallbackFailed(ProcessingFailed):
    """The user's callback ``on_message_processed`` raised an error.

    The worker stops; the message is still committed.
    """

    cause = ""


class ProcessedCalls:
    """Calls the user's function for each message that was processed, was skipped, or became a dead letter.

    A worker with such a function processes one message at a time. If the function calls ``app.stop()``, the worker thus
    ends directly after this message. Without a function, calls cost nothing.
    """

    def __init__(self, function: OnMessageProcessed | None = None) -> None:
        self._function = function

    def room(self, most: int) -> int:
        """Returns how many messages may be processed before the user's function is called, at most ``most``."""
        return most if self._function is None else 1

    def __call__(self, run: Run | InterleavedRun, before: Mapping[str, int], positions: Mapping[str, int]) -> None:
        """Calls the user's function for the processed records of a run (consecutive records).

        ``before`` and ``positions`` are the task's positions before and after the run.
        """
        if self._function is None:
            return
        for number in range(run.size):
            batch, index = run.place(number)
            (topic, partition), offset = batch.partition, batch.offsets[index]
            # In a repartition topic, a record without a key is a watermark of the processor's own, and no message.
            if is_repartition_topic(topic) and batch.keys[index] is None:
                continue
            if before[topic] <= offset < positions[topic]:
                self._call(topic, partition, offset)

    def _call(self, topic: str, partition: int, offset: int) -> None:
        assert self._function is not None
        try:
            self._function(topic, partition, offset)
        except (Exception, SystemExit) as raised:
            raise CallbackFailed(
                f"`on_message_processed` raised {type(raised).__name__}: {raised}. The message at {topic}[{partition}] "
                f"offset {offset} is processed, and is committed.",
                action="Correct `on_message_processed`. Then restart: processing resumes behind this message.",
                topic=topic,
                partition=partition,
                offset=offset,
            ) from raised


class FailurePolicy:
    """Decides what happens to failed messages, and counts them.

    Without a dead-letter topic, the first failed message that the callback does not skip stops the worker. A table that
    is grouped by another key sends each change of a row to the row's group. If such a change fails, the worker always
    stops. The group would stay wrong without the change, and the row is not sent again.

    If the dead-letter topic does not accept the timestamp of a message, the dead letter gets the current time. The
    header ``holdfast.timestamp`` has the original timestamp.
    """

    def __init__(
        self,
        dead_letter_topic: str | None,
        callbacks: Callbacks | None,
        processor: str,
        code_version: str,
        record_bytes_max: int = UNLIMITED,
        record_times: RecordTimes = ANY_TIME,
        table_groups: Collection[str] = (),
    ) -> None:
        self._topic = dead_letter_topic
        self._callbacks = callbacks or Callbacks()
        #: Calls the user's ``on_message_processed``.
        self.on_processed = ProcessedCalls(self._callbacks.processed)
        self._processor = processor
        self._code_version = code_version
        self._bytes_max = record_bytes_max
        self._times = record_times
        self._table_groups = frozenset(table_groups)
        self.dead_lettered = 0
        self.skipped = 0

    def __call__(self, failed: FailedMessage) -> Output | None:
        """Returns the dead letter of a failed message, or None to skip it; otherwise raises ProcessingFailed.

        If a schema registry fails, the worker always stops, because the message may be correct. The worker also stops
        for a record of ``table_groups``: the topics to which a table sends the changes of its rows (``group_by``).
        """
        if isinstance(failed.error, SchemaRegistryFailed):
            stopped = _failure(failed, action=failed.error.action)
            stopped.cause, stopped.exit_code = failed.error.cause, failed.error.exit_code
            raise stopped from failed.error
        if failed.partition.topic in self._table_groups and not failed.made:
            raise _failure(failed, also=NOT_ASIDE, action=_group_action(failed)) from failed.error
        if self._is_skipped(failed):
            self.skipped += 1
            return None
        if self._topic is None:
            raise _failure(failed) from failed.error
        headers = self._headers(failed)
        size = sum(len(part or b"") for part in (failed.key, failed.value)) + headers_size(headers)
        if size > self._bytes_max:
            large = too_large("The dead letter, with its reasons in headers,", self._topic, size, self._bytes_max)
            raise _failure(failed, also=large.message, action=large.action) from failed.error
        self.dead_lettered += 1
        if self.dead_lettered <= LOG_FIRST or self.dead_lettered % LOG_EVERY == 0:
            _log.warning(
                f"{_kind(failed)} went to the dead-letter topic",
                **({"made": failed.made} if failed.made else {}),
                topic=failed.partition.topic,
                partition=failed.partition.number,
                offset=failed.offset,
                error=type(failed.error).__name__,
                reason=_reason(failed.error)[:200],
                dead_letter_topic=self._topic,
                total=self.dead_lettered,
            )
        time_ms = self._times.taken(self._topic, failed.timestamp_ms)
        return Output(self._topic, failed.key, failed.value, time_ms, headers)

    def _is_skipped(self, failed: FailedMessage) -> bool:
        """Asks the user's callbacks whether to skip the message: first the one for this error, then the general one."""
        given = self._callbacks
        asked: list[tuple[str, Callable[..., bool] | None, Any]] = []
        if isinstance(failed.error, UNREADABLE) and not failed.made:
            asked.append(("on_consumer_error", given.consumer, UnreadMessage(failed)))
        if _is_of_output(failed.error):
            asked.append(("on_producer_error", given.producer, failed))
        asked.append(("on_processing_error", given.processing, failed))
        return any(ask is not None and self._skips(name, ask, failed, shown) for name, ask, shown in asked)

    def _skips(self, called: str, ask: Callable[..., bool], failed: FailedMessage, shown: Any) -> bool:
        try:
            return bool(ask(failed.error, shown, _users_log))
        except (Exception, SystemExit) as raised:
            name = getattr(ask, "__name__", repr(ask))
            said = f"`{called}` ({name}) raised {type(raised).__name__}: {_text(raised)}."
            raise _failure(failed, also=said, action=f"Correct `{called}`: True skips.") from raised

    def _headers(self, failed: FailedMessage) -> Headers:
        said = [failed.error.action] if isinstance(failed.error, HoldfastError) else []
        said += [SEND_AGAIN] if failed.regrouped else []
        ours = {
            "holdfast.error": _reason(failed.error),
            "holdfast.error.type": type(failed.error).__name__,
            **({"holdfast.error.action": " ".join(said)} if said else {}),
            "holdfast.topic": failed.partition.topic,
            "holdfast.partition": str(failed.partition.number),
            "holdfast.offset": str(failed.offset),
            "holdfast.timestamp": str(failed.timestamp_ms),
            "holdfast.processor": self._processor,
            "holdfast.code_version": self._code_version,
            "holdfast.kind": _kind(failed),
            **({"holdfast.left_out": "headers"} if failed.without_headers else {}),
            **({} if failed.timer is None else {"holdfast.timer": failed.timer}),
            **({} if failed.schedule is None else {"holdfast.schedule": failed.schedule}),
        }
        # The text of an error may contain any characters, even surrogates, which UTF-8 can't encode.
        encoded = ((name, text.encode(errors="backslashreplace")) for name, text in ours.items())
        # A dead letter that was replayed has the headers of its earlier failure. Those headers are removed, because
        # each failure would otherwise add about ten more.
        return [*(pair for pair in failed.headers or () if pair[0] not in FAILURE_HEADERS), *encoded]


def _is_of_output(error: Exception) -> bool:
    """Whether the error means that an output of the message can't be written."""
    if isinstance(error, RecordTooLarge):
        return not str(error.fields.get("topic", "")).endswith(CHANGELOG_SUFFIX)
    return isinstance(error, (ValueUnwritable, RecordTimeRefused))


def _reason(error: Exception) -> str:
    text = error.message if isinstance(error, HoldfastError) else _text(error)
    return text if len(text) <= REASON_MAX else f"{text[:REASON_MAX]}… ({len(text)} characters)"


def _text(error: BaseException) -> str:
    try:
        return masked(str(error))  # secrets are masked, because the text is logged and sent to the dead-letter topic
    except Exception as failure:
        return f"(its text can't be made: {type(failure).__name__})"


def _kind(failed: FailedMessage) -> str:
    if failed.schedule is not None:
        return "schedule"
    return "timer" if failed.timer is not None else "result" if failed.made else "message"


def _action(failed: FailedMessage) -> str:
    """Returns the suggested action for a failed message. If the error has its own action, the result contains it."""
    kind, error = _kind(failed), failed.error
    steps = {"timer": "`on_timer` or a step behind it", "schedule": "the function of the schedule"}
    code = {**steps, "result": "the steps behind the window"}.get(kind)
    if isinstance(error, HoldfastError):
        said = error.action
    else:
        plain = "Correct the function." if failed.regrouped else "Correct the function or the message."
        said = plain if code is None else f"Correct {code}."
    aside = "" if "dead_letter_topic" in said else f" Or set `dead_letter_topic` to put failed {kind}s aside."
    resumes = "processing resumes at this offset" if code is None else f"the {kind} comes again"
    blamed = "" if code is None else " The message at that offset is not the cause."
    return f"{said}{aside} Then restart: {resumes}.{blamed}"


def _group_action(failed: FailedMessage) -> str:
    """Returns the suggested action for a failed change of a table's row, which can't be skipped or dead-lettered."""
    own = failed.error.action if isinstance(failed.error, HoldfastError) else ""
    if "dead_letter_topic" in own:
        own = ""  # a dead-letter topic does not help, because such a change never becomes a dead letter
    if own and isinstance(failed.error, AggregationFailed):
        return own  # an error of a built-in column: there is no user function to correct
    return (
        f"{own and own + ' '}Correct the function of the column, or the step behind the groups, so that it takes this "
        "change. A function of `Reduce` keeps its name. Then deploy it: processing resumes at this offset."
    )


def _failure(failed: FailedMessage, *, also: str = "", action: str = "") -> ProcessingFailed:
    subject = f"{failed.made} and" if failed.made else f"Processing {failed.place}"
    whose = f"The {_kind(failed)}'s" if failed.made else "Its"
    return ProcessingFailed(
        f"{subject} raised {type(failed.error).__name__}: {_reason(failed.error).rstrip('.')}. "
        f"{also and also + ' '}{whose} state writes are undone; the messages before it are committed.",
        action=action or _action(failed),
        topic=failed.partition.topic,
        partition=failed.partition.number,
        offset=failed.offset,
        error=type(failed.error).__name__,
    )
