"""The base classes of sources: ``Source``, whose starts are independent, and ``StatefulSource``, which resumes.

A user's class has a method ``run``. One worker of the processor calls it on a thread of its own, for each start on a
copy of the declared object. The thread gives messages and state to the worker's loop (``handover``).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.formats.kafka_message import GivenHeaders, KafkaMessage
from holdfast.processors.engine.formats.serialization import written_headers
from holdfast.processors.engine.sources.handover import Handover
from holdfast.processors.engine.sources.source_state import SourceState
from holdfast.processors.engine.steps.group_key import text_of_key
from holdfast.processors.engine.steps.topic import Topic

#: Seconds that a worker waits for the end of ``run`` when it stops.
SHUTDOWN_S = 10.0

Kind = TypeVar("Kind", bound="Source")
#: Called after ``setup`` has returned.
ClientConnectSuccessCallback = Callable[[], None]
#: Called with the error of ``setup``. If the callback returns, ``run`` is called nevertheless.
ClientConnectFailureCallback = Callable[[Exception], None]


class SourceNotRunning(HoldfastError):
    """A method of a source was called outside of its ``run``, for example ``produce`` on the declared object."""


class SourceWithoutState(HoldfastError, AttributeError):
    """A source that is no ``StatefulSource`` used ``state``."""


class MessageRefused(HoldfastError):
    """A message of a source has an argument that is not allowed. It is not sent."""


class Source:
    """A source of messages outside of Kafka. Subclass it, and implement ``run``.

    One worker of the processor runs it at a time. Each start calls ``run`` from its beginning: after a restart, and
    when the task moves to another worker. Use a ``StatefulSource`` to resume where the last one stopped.

    Args:
        name: The name of the source, unique in the application. The default topic is ``source__<name>``.
        shutdown_timeout: Seconds that a worker which stops waits for the end of ``run``.
        on_client_connect_success: Called after ``setup`` has returned.
        on_client_connect_failure: Called with the error of ``setup``. If it returns, ``run`` is called nevertheless;
            without this callback, the worker stops with the error.
    """

    _handover: Handover | None = None
    _topic: Topic | None = None
    #: The method or callback that the worker called last, for the error of a source that fails.
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
        """Produces messages, until there are no more or ``self.running`` is False. Subclasses implement it.

        An exception stops the worker. The messages that are complete are committed before.
        """
        raise NotImplementedError

    def setup(self) -> None:
        """Connects to the system outside; called before ``run``. The default does nothing."""

    def stop(self) -> None:
        """Called on the worker's thread when the source shall end, after ``running`` has become False.

        Replace it to end a blocking call, for example by closing a connection. The default does nothing.
        """

    def cleanup(self, failed: bool) -> None:
        """Called after ``run``; ``failed`` is True if it raised. The default does nothing."""

    def default_topic(self) -> Topic:
        """Returns the topic of the source if ``app.add_source`` gets none; its name gets the prefix ``source__``.

        Values are JSON. Keys are texts, bytes or whole numbers, written as text.
        """
        return Topic(self.name, key_serializer=text_of_key)

    # -- methods that ``run`` calls ---------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """True while ``run`` shall continue. False before the start, and when the worker stops or loses the task."""
        return self._handover is not None and self._handover.running

    @property
    def producer_topic(self) -> Topic:
        """The declared topic, to which ``produce`` sends."""
        return self._topic or self._not_running("producer_topic")

    @property
    def _producer_topic(self) -> Topic:
        """Programs for Quix Streams use this name."""
        return self.producer_topic

    def serialize(
        self, key: Any = None, value: Any = None, headers: GivenHeaders = None, timestamp_ms: int | None = None
    ) -> KafkaMessage:
        """Serializes a key and a value with the serializers of the source's topic, for ``produce``.

        Raises:
            ValueUnwritable: The topic's serializers refuse the key or the value, or headers can't be written.
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
        """Produces a message to the source's topic. It waits while the worker is behind.

        The message is sent in a transaction of the worker. Messages of a ``StatefulSource`` are sent at ``flush``.

        Args:
            value: The value as bytes or text; None deletes the key in a compacted topic.
            key: The key as bytes or text. It decides the partition.
            headers: Header names with values, which are bytes, texts or None.
            partition: Must be None: the key decides the partition.
            timestamp: Milliseconds since 1970; None means the present time.
            poll_timeout: Ignored. Accepted for code that was written for Quix Streams.
            buffer_error_max_tries: Ignored, likewise.

        Raises:
            MessageRefused: An argument is not allowed.
            RecordTooLarge: The message is larger than the topic allows.
            RecordTimeRefused: The topic does not accept the timestamp.
            UnitTooLarge: A ``StatefulSource`` has produced too much since its last ``flush``.
            SourceStopped: The task has ended. Let this error pass: it ends ``run``.
        """
        handover = self._handover or self._not_running("produce")
        if partition is not None:
            raise _refused("partition", partition, "None: the key decides the partition", "leave `partition` out")
        if timestamp is not None and (type(timestamp) is not int or timestamp < 0):
            raise _refused("timestamp", timestamp, "milliseconds since 1970", "pass `int(time.time() * 1000)`")
        sent = written_headers(headers, self.producer_topic.name)
        handover.put(_raw("value", value), _raw("key", key), timestamp, sent)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all messages and all state up to this call are committed, in one transaction of Kafka.

        Args:
            timeout: Maximum seconds to wait; None means no limit.

        Raises:
            FlushTimeout: Nothing was committed in time. The messages stay queued.
            SourceStopped: The task has ended. What was not committed is discarded. Let this error pass.
        """
        (self._handover or self._not_running("flush")).flush(timeout)

    def sleep(self, seconds: float) -> bool:
        """Waits for a time of the worker's clock. Returns early with False if the source shall end.

        Use it in place of ``time.sleep``, so that a worker stops at once, and tests with virtual time do not wait.
        """
        return (self._handover or self._not_running("sleep")).sleep(seconds)

    # -- methods for the worker -------------------------------------------------------------------------------------

    def started_with(self: Kind, topic: Topic, handover: Handover) -> Kind:
        """Returns the copy of the source that one thread runs."""
        made = copy(self)
        made._topic, made._handover = topic, handover
        return made

    def start(self) -> None:
        """Calls ``setup``, ``run`` and ``cleanup``, on the source's thread."""
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

    def _not_running(self, called: str) -> NoReturn:
        raise SourceNotRunning(
            f"`{called}` of source {self.name!r} was used while the source does not run; a worker runs it.",
            action=f"Use `{called}` within `run` (or `setup`) of the class, and start the application: `app.run()`.",
            source=self.name,
        )

    if not TYPE_CHECKING:  # so that type checkers still report other attributes

        def __getattr__(self, name: str) -> Any:
            """Called for an attribute that does not exist. A subclass may have an attribute ``state`` of its own."""
            if name != "state":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            kind = type(self).__name__
            raise SourceWithoutState(
                f"Source {self.name!r} used `state`, but {kind} is a subclass of `Source`, which keeps no state.",
                action=f"Write `class {kind}(StatefulSource)`, and call `self.flush()` to commit its state.",
                source=self.name,
            )

    def __repr__(self) -> str:
        """The name of the source."""
        return self.name


class StatefulSource(Source):
    """A source with state, which resumes where its last committed ``flush`` was. Subclass it, and implement ``run``.

    What ``run`` produces and sets between two calls of ``flush`` is committed together, in one transaction of Kafka.
    The end of ``run`` counts as a ``flush``; an exception does not, and discards what came since the last one.
    """

    @property
    def state(self) -> SourceState:
        """The state of the source, up to now. A start begins with the state of the last committed ``flush``.

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
