"""Decides about a failed message: stop the worker (default), write a dead letter, or skip the message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Headers
from holdfast.infra.masking import masked
from holdfast.infra.schemas.errors import SchemaRegistryFailed
from holdfast.processors.engine.formats.serialization import headers_size
from holdfast.processors.engine.record_size import UNLIMITED, too_large
from holdfast.processors.engine.record_times import ANY_TIME, RecordTimes
from holdfast.processors.engine.runtime.task.failed_message import FailedMessage
from holdfast.processors.engine.steps.outbox import Output

_log = structlog.get_logger("runtime.failures")
_users_log = logging.getLogger("holdfast.processing")

#: The user's callback: called with the error, the message and a logger; returns True to skip the message.
OnProcessingError = Callable[[Exception, FailedMessage, logging.Logger], bool]

#: The first ``LOG_FIRST`` dead letters are logged, and after them every ``LOG_EVERY``-th dead letter.
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
        on_processing_error: OnProcessingError | None,
        processor: str,
        code_version: str,
        record_bytes_max: int = UNLIMITED,
        record_times: RecordTimes = ANY_TIME,
        table_groups: Collection[str] = (),
    ) -> None:
        self._topic = dead_letter_topic
        self._ask = on_processing_error
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
        if self._ask is not None and self._skips(self._ask, failed):
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

    def _skips(self, ask: OnProcessingError, failed: FailedMessage) -> bool:
        try:
            return ask(failed.error, failed, _users_log)
        except (Exception, SystemExit) as raised:
            name = getattr(ask, "__name__", repr(ask))
            said = f"`on_processing_error` ({name}) raised {type(raised).__name__}: {_text(raised)}."
            raise _failure(failed, also=said, action="Correct `on_processing_error`: True skips.") from raised

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
    """Returns the suggested action for a failed change of a table's row.

    It can't be skipped or become a dead letter.
    """
    of_error = f"{failed.error.action} " if isinstance(failed.error, HoldfastError) else ""
    return (
        f"{of_error}Correct the function of the column, or the step behind the groups, so that it takes this change. "
        "Then deploy it: processing resumes at this offset."
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
