"""The base classes of sources: ``Source``, and ``StatefulSource``, which resumes from its state after a restart.

A user's class has a method ``run``. One worker of the processor calls ``run`` on a separate thread, for each start on a
copy of the declared object. The thread passes messages and state to the worker's loop (module ``handover``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.connectors import ExternalSystem
from holdfast.processors.engine.formats.kafka_message import GivenHeaders, KafkaMessage
from holdfast.processors.engine.formats.serialization import written_headers
from holdfast.processors.engine.sources.handover import Handover
from holdfast.processors.engine.sources.reports import ReportingSource, SourceReports
from holdfast.processors.engine.sources.source_state import SourceState
from holdfast.processors.engine.steps.group_key import text_of_key
from holdfast.processors.engine.steps.topic import Topic

#: Default seconds that a stopping worker waits for the end of ``run``.
SHUTDOWN_S = 10.0

Kind = TypeVar("Kind", bound="Source")
#: A user function that is called after ``setup`` has returned.
ClientConnectSuccessCallback = Callable[[], None]
#: A user function that is called with the error of ``setup``. If the function itself raises no error, ``run`` is called
#: in spite of the error.
ClientConnectFailureCallback = Callable[[Exception], None]


class SourceNotRunning(HoldfastError):
    """A method of a source was called while the source does not run, for example ``produce`` on the declared object."""


class SourceWithoutState(HoldfastError, AttributeError):
    """A source that is no ``StatefulSource`` used ``state``."""


class MessageRefused(HoldfastError):
    """``produce`` of a source got an argument that is not allowed. The message is not sent."""


class Source(ReportingSource):
    """Base class of sources, which read messages from a system other than Kafka. A subclass implements ``run``.

    Only one worker of the processor runs the source at a time. After a restart, and when the task moves to another
    worker, ``run`` is called again from its beginning. Use a ``StatefulSource`` to resume at the position of the last
    commit.

    Args:
        name: The name of the source, unique in the application. The default topic is ``source__<name>``.
        shutdown_timeout: Seconds that a stopping worker waits for the end of ``run``.
        on_client_connect_success: Called after ``setup`` has returned.
        on_client_connect_failure: Called with the error of ``setup``. If the callback returns, ``run`` is called in
            spite of the error. Without a callback, the worker stops with the error.
    """

    _handover: Handover | None = None
    _topic: Topic | None = None
    #: The method or callback of the user's class that the worker called last. If the source fails, the error names it.
    called_by_worker = "run"

    def __init__(
        self,
        name: str,
        shutdown_timeout: float = SHUTDOWN_S,
        on_client_connect_success: ClientConnectSuccessCallback | None = None,
        on_client_connect_failure: ClientConnectFailureCallback | None = None,
    ) -> None:
        self.name, self.shutdown_timeout = name, shutdown_timeout
        self._on_connected, self._on_not_connected = on_client_connect_success, on_client_connect_failure

    # -- methods that a subclass implements or may replace ----------------------------------------------------------

    def run(self) -> None:
        """Produces messages, until there are no more or ``self.running`` is False. A subclass must implement it.

        If ``run`` raises an exception, the worker commits the complete messages and then stops.
        """
        raise NotImplementedError

    def setup(self) -> None:
        """Connects to the other system. The worker calls it before ``run``. The default does nothing."""

    def stop(self) -> None:
        """Called on the worker's thread when the source should end, after ``running`` has become False.

        Override it to interrupt a blocking call, for example by closing a connection. The default does nothing.
        """

    def cleanup(self, failed: bool) -> None:
        """Called after ``run``. ``failed`` is True if ``setup`` or ``run`` raised an error.

        The default does nothing.
        """

    def default_topic(self) -> Topic:
        """Returns the topic that is used if ``app.add_source`` gets no topic. Its name gets the prefix ``source__``.

        Values are serialized as JSON. Keys are texts, bytes or whole numbers; they are written as text.
        """
        return Topic(self.name, key_serializer=text_of_key)

    @property
    def version_functions(self) -> Sequence[Callable[..., Any]]:
        """The functions whose source text is a part of the processor's code version. The default is ``run``."""
        return (type(self).run,)

    @property
    def connects_to(self) -> ExternalSystem:
        """The system that the source reads, for Dagster and for the docs of the data. The default is unknown."""
        return ExternalSystem()

    # -- methods that ``run`` calls ---------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether ``run`` should continue. False before the start, and when the worker stops or loses the task."""
        return self._handover is not None and self._handover.running

    @property
    def producer_topic(self) -> Topic:
        """The source's topic, to which ``produce`` sends."""
        return self._topic or self._not_running("producer_topic")

    @property
    def _producer_topic(self) -> Topic:
        """The property ``producer_topic``, under the name that programs for Quix Streams use."""
        return self.producer_topic

    def serialize(
        self, key: Any = None, value: Any = None, headers: GivenHeaders = None, timestamp_ms: int | None = None
    ) -> KafkaMessage:
        """Serializes a key and a value for ``produce``, with the serializers of the source's topic.

        Raises:
            ValueUnwritable: A serializer refuses the key or the value, or a header has the wrong type.
        """
        return self.producer_topic.serialize(key, value, headers, timestamp_ms)

    def produce(  # tidy: allow-wide because these are the argument names of Quix Streams.
        self,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: int | None = None,
        poll_timeout: float = 5.0,
        buffer_error_max_tries: int = 3,
    ) -> None:
        """Produces a message to the source's topic. Waits while too many messages are not committed yet.

        The worker sends the message in one of its transactions. Messages of a ``StatefulSource`` are sent after
        ``flush``.

        Args:
            value: The value as bytes or text; None deletes the key in a compacted topic.
            key: The key as bytes or text. It decides the partition.
            headers: Header names with values, which are bytes, texts or None.
            partition: Must be None, because the key decides the partition.
            timestamp: Milliseconds since 1970; None means the present time.
            poll_timeout: Ignored; accepted for code that was written for Quix Streams.
            buffer_error_max_tries: Ignored; accepted for code that was written for Quix Streams.

        Raises:
            MessageRefused: An argument is not allowed.
            RecordTooLarge: The message is larger than the topic allows.
            RecordTimeRefused: The topic does not accept the timestamp.
            UnitTooLarge: A ``StatefulSource`` has produced too much since its last ``flush``.
            SourceStopped: The task has ended. Do not catch this error, because it ends ``run``.
        """
        handover = self._handover or self._not_running("produce")
        if partition is not None:
            raise _refused("partition", partition, "None: the key decides the partition", "leave `partition` out")
        if timestamp is not None and (type(timestamp) is not int or timestamp < 0):
            raise _refused("timestamp", timestamp, "milliseconds since 1970", "pass `int(time.time() * 1000)`")
        sent = written_headers(headers, self.producer_topic.name)
        handover.put(_raw("value", value), _raw("key", key), timestamp, sent)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all earlier messages and state changes of the source are committed, in one Kafka transaction.

        Args:
            timeout: Maximum seconds to wait; None means no limit.

        Raises:
            FlushTimeout: The timeout has passed before the commit. The messages stay queued for a later commit.
            SourceStopped: The task has ended, and uncommitted messages and state are discarded. Do not catch this
                error.
        """
        (self._handover or self._not_running("flush")).flush(timeout)

    def sleep(self, seconds: float) -> bool:
        """Waits for ``seconds`` of the worker's clock. If the source should end, returns False at once.

        Use it instead of ``time.sleep``. The worker can then stop at once, and tests with virtual time need not wait.
        """
        return (self._handover or self._not_running("sleep")).sleep(seconds)

    # -- methods for the worker -------------------------------------------------------------------------------------

    def started_with(self: Kind, topic: Topic, handover: Handover) -> Kind:
        """Returns a copy of the source for one run. The copy sends to ``topic`` through ``handover``."""
        made = copy(self)
        made._topic, made._handover = topic, handover
        return made

    def start(self) -> None:
        """Calls ``setup``, ``run`` and ``cleanup`` of the user's class, on the source's thread."""
        failed = True
        try:
            self._connect()
            self._calls("run")
            self.run()
            failed = False
        finally:
            try:
                self.cleanup(failed)
            except BaseException:
                self._calls("cleanup")
                raise

    def _connect(self) -> None:
        self._calls("setup")
        try:
            self.setup()
        except Exception as failure:
            if self._on_not_connected is None:
                raise
            self._calls("on_client_connect_failure")
            self._on_not_connected(failure)
        else:
            if self._on_connected is not None:
                self._calls("on_client_connect_success")
                self._on_connected()

    def _calls(self, method: str) -> None:
        self.called_by_worker = method

    def _reports(self, called: str) -> SourceReports:
        return self._handover or self._not_running(called)

    def _not_running(self, called: str) -> NoReturn:
        raise SourceNotRunning(
            f"`{called}` of source {self.name!r} was used while the source does not run; a worker runs it.",
            action=f"Use `{called}` within `run` (or `setup`) of the class, and start the application: `app.run()`.",
            source=self.name,
        )

    if not TYPE_CHECKING:  # with this method, type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Called for a missing attribute. Raises SourceWithoutState for ``state``, unless a subclass defines it.

            Python also calls this method after a property raised an AttributeError, and drops the property's error.
            """
            if name != "state" or hasattr(type(self), name):
                return object.__getattribute__(self, name)  # This second read raises the property's own error.
            kind = type(self).__name__
            raise SourceWithoutState(
                f"Source {self.name!r} used `state`, but {kind} is a subclass of `Source`, which keeps no state.",
                action=f"Write `class {kind}(StatefulSource)`, and call `self.flush()` to commit its state.",
                source=self.name,
            )

    def __repr__(self) -> str:
        """Returns the name of the source."""
        return self.name


class StatefulSource(Source):
    """Base class of sources with state, which resume at their last committed ``flush``. A subclass implements ``run``.

    All messages and state changes between two calls of ``flush`` are committed together, in one Kafka transaction. If
    ``run`` returns, the worker commits like after a ``flush``. If ``run`` raises an exception, everything since the
    last ``flush`` is discarded.
    """

    @property
    def state(self) -> SourceState:
        """The source's state, including uncommitted changes.

        After a restart, it is the state of the last committed ``flush``.

        Raises:
            SourceNotRunning: The source does not run.
        """
        return (self._handover or self._not_running("state")).state


def _raw(part: str, given: Any) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise _refused(part, given, "bytes, a text or None", "pass the bytes of `message = self.serialize(key, value)`")


def _refused(part: str, given: Any, expected: str, instead: str) -> MessageRefused:
    return MessageRefused(
        f"`{part}` of `produce` is {repr(given)[:80]} of type {type(given).__name__}; expected {expected}.",
        action=f"{instead[0].upper()}{instead[1:]}.",
        seen=repr(given)[:80],
    )
