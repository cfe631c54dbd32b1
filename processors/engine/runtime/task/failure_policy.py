"""Decides about a failed message: stop the worker (default), write a dead letter, or skip the message.

Also calls the other callbacks of an application for its messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import HeadersUnreadable
from holdfast.infra.kafka.records import Headers
from holdfast.infra.log import get_logger
from holdfast.infra.masking import masked
from holdfast.infra.schemas.errors import SchemaRegistryFailed
from holdfast.processors.engine.aggregates.aggregation import AggregationFailed
from holdfast.processors.engine.changelog.names import CHANGELOG_SUFFIX
from holdfast.processors.engine.formats.serialization import ValueUnreadable, ValueUnwritable, headers_size
from holdfast.processors.engine.record_size import UNLIMITED, RecordTooLarge, too_large
from holdfast.processors.engine.record_times import ANY_TIME, RecordTimeRefused, RecordTimes
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun, Run
from holdfast.processors.engine.runtime.task.failed_message import FailedMessage
from holdfast.processors.engine.steps.outbox import Output

_log = get_logger("runtime.failures")
_users_log = logging.getLogger("holdfast.processing")

#: The user's callback: called with the error, the message and a logger; returns True to skip the message.
OnProcessingError = Callable[[Exception, FailedMessage, logging.Logger], bool]
#: The same for a message that can't be read; and for a message whose output can't be written.
OnConsumerError = Callable[[Exception, "UnreadMessage", logging.Logger], bool]
OnProducerError = OnProcessingError
#: Called with topic, partition and offset of each processed message.
OnMessageProcessed = Callable[[str, int, int], Any]

#: Errors of a message that can't be read.
UNREADABLE = ValueUnreadable, HeadersUnreadable
#: Of the dead letters, the first ``LOG_FIRST`` are logged, and then only every ``LOG_EVERY``-th.
LOG_FIRST = 5
LOG_EVERY = 1000
#: The suggested action for a dead letter from a repartition topic. It can't be replayed, because a replay sends to a
#: source topic.
SEND_AGAIN = (
    "This record is of a topic of the processor's own, behind `group_by` or a join by a foreign key. After a "
    "correction, send the message of the source again."
)
#: A part of the error's text for a failed change of a table's row. Such a change never becomes a dead letter.
NOT_ASIDE = (
    "The message is a change of a table's row for its group. It is neither skipped nor put aside: the group would stay "
    "wrong, because the row is not sent again."
)
#: Maximum characters of an error's text, so that the headers do not make the dead letter too large.
REASON_MAX = 2_000
#: Names of all headers that a dead letter may have about its failure.
FAILURE_HEADERS = frozenset(
    f"holdfast.{name}"
    for name in (
        *("error", "error.type", "error.action", "topic", "partition", "offset", "timestamp", "processor"),
        *("code_version", "left_out", "timer", "schedule", "kind"),
    )
)


class ProcessingFailed(HoldfastError):
    """A message can't be processed, no callback skips it, and no dead letter can be written; the worker stops."""

    cause = "poison-message"


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The user's callbacks of an application; None for a callback that is not given."""

    processing: OnProcessingError | None = None
    consumer: OnConsumerError | None = None
    producer: OnProducerError | None = None
    processed: OnMessageProcessed | None = None

    @property
    def skip(self) -> bool:
        """Whether a callback may skip a failed message."""
        return (self.processing, self.consumer, self.producer) != (None, None, None)


class UnreadMessage:
    """A message that can't be read, for ``on_consumer_error``. It has the methods of a message of confluent-kafka."""

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
        """The place of the message."""
        return self._failed.place


class CallbackFailed(ProcessingFailed):
    """``on_message_processed`` raised an error. The worker stops; the message is processed and committed."""

    cause = ""


class ProcessedCalls:
    """Calls the user's function for each message that was processed, skipped or put aside.

    A worker with this function processes one message at a time, so that ``app.stop()`` in it ends behind the message.
    Without it, there is no cost.
    """

    def __init__(self, function: OnMessageProcessed | None = None) -> None:
        self._function = function

    def room(self, most: int) -> int:
        """Returns the number of messages that may be processed before the next call, at most ``most``."""
        return most if self._function is None else 1

    def __call__(self, run: Run | InterleavedRun, before: Mapping[str, int], positions: Mapping[str, int]) -> None:
        """Must be called after a run of records, with the positions before and behind it."""
        if self._function is None:
            return
        for number in range(run.size):
            batch, index = run.place(number)
            (topic, partition), offset = batch.partition, batch.offsets[index]
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

    If the dead-letter topic does not accept the timestamp of a message, the dead letter gets the present time. The
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
        #: Calls ``on_message_processed``.
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
        for a record of ``table_groups``, the topics with the changes of a table's rows for their groups.
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
        """Asks the callback for the kind of the error first, and then ``on_processing_error``."""
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
        # A replayed dead letter has the headers of its earlier failure. They are removed, because otherwise each
        # failure would add ten more headers.
        return [*(pair for pair in failed.headers or () if pair[0] not in FAILURE_HEADERS), *encoded]


def _is_of_output(error: Exception) -> bool:
    """Whether an output of the message can't be written, and not a value of its state."""
    if isinstance(error, RecordTooLarge):
        return not str(error.fields.get("topic", "")).endswith(CHANGELOG_SUFFIX)
    return isinstance(error, (ValueUnwritable, RecordTimeRefused))


def _reason(error: Exception) -> str:
    text = error.message if isinstance(error, HoldfastError) else _text(error)
    return text if len(text) <= REASON_MAX else f"{text[:REASON_MAX]}… ({len(text)} characters)"


def _text(error: BaseException) -> str:
    try:
        return masked(str(error))  # secrets are masked, because the text goes into logs and into the dead-letter topic
    except Exception as failure:
        return f"(its text can't be made: {type(failure).__name__})"


def _kind(failed: FailedMessage) -> str:
    if failed.schedule is not None:
        return "schedule"
    return "timer" if failed.timer is not None else "result" if failed.made else "message"


def _action(failed: FailedMessage) -> str:
    """Returns the suggested action for a failed message. A HoldfastError has its own action, which is used."""
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
    """Returns the suggested action for a failed change of a table's row, which can't be skipped or put aside."""
    own = failed.error.action if isinstance(failed.error, HoldfastError) else ""
    if "dead_letter_topic" in own:
        own = ""  # it is no way out for a change of a group
    if own and isinstance(failed.error, AggregationFailed):
        return own  # no function makes the total of a built-in column smaller: the items are in the record
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
