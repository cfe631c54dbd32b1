"""Messages and state outside of streams, in a program's own loop.

``app.get_producer()`` and ``app.get_consumer()`` write and read messages. ``app.state_client()`` reads state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.infra.errors import HoldfastError
from holdfast.processors.application.consumer import Consumer
from holdfast.processors.engine.formats.kafka_message import GivenHeaders
from holdfast.processors.engine.formats.serialization import written_headers
from holdfast.processors.engine.steps.topic import Topic

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings
    from holdfast.processors.client.state_client import StateClient
    from holdfast.processors.engine.runtime.ports import Cluster, TransactionProducer

#: Maximum seconds that ``flush`` waits for the brokers if the caller gives no ``timeout``.
FLUSH_S = 60.0


class MessageInvalid(HoldfastError):
    """A message has an invalid argument, or its producer is closed. The message is not sent."""


class Producer:
    """Sends messages to Kafka. ``app.get_producer()`` returns an instance, which is used in a ``with`` block.

    At its end, the block waits until the brokers have all messages. The messages belong to no transaction of a stream.
    """

    def __init__(self, connect: Callable[[], AbstractContextManager[TransactionProducer]]) -> None:
        self._connect, self._stack = connect, ExitStack()
        self._made: TransactionProducer | None = None
        self._closed = False

    def produce(  # tidy: allow-wide because these are the argument names of Quix Streams.
        self,
        topic: str | Topic,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Queues a message and returns at once.

        ``flush`` and the end of the ``with`` block wait until the brokers have the message.

        Args:
            topic: The topic, or its name.
            value: The value as bytes or text; None deletes the key in a compacted topic.
            key: The key as bytes or text; None means that the message has no key.
            headers: Header names with values, which are bytes, texts or None.
            partition: The partition; None computes the partition from the key, as Kafka's own clients do.
            timestamp: Milliseconds since 1970; None means the present time.

        Raises:
            MessageInvalid: The producer is closed, or an argument has another type.
            ValueUnwritable: The headers can't be written.
            KafkaFailed: Kafka refused the message.
        """
        name = topic.name if isinstance(topic, Topic) else topic
        if not isinstance(name, str) or not name:
            raise _invalid("topic", topic, "a topic or its name", "`producer.produce(topic=topic.name, ...)`")
        if timestamp is not None and (type(timestamp) is not int or timestamp < 0):
            raise _invalid("timestamp", timestamp, "milliseconds since 1970", "`int(time.time() * 1000)`")
        if partition is not None and (type(partition) is not int or partition < 0):
            raise _invalid("partition", partition, "a number from 0 on", "no `partition`, for that of the key")
        raw_value, raw_key = _raw("value", value), _raw("key", key)
        self._producer().produce(
            name,
            raw_value,
            raw_key,
            partition=-1 if partition is None else partition,
            timestamp_ms=timestamp or 0,
            headers=written_headers(headers, name),
        )

    def flush(self, timeout: float | None = None) -> int:
        """Waits until the brokers have all messages, and returns 0.

        Args:
            timeout: Maximum seconds to wait; None means 60 seconds.

        Raises:
            OutcomeUnknown: The brokers did not answer in time.
            KafkaFailed: Kafka refused a message.
        """
        if self._made is not None:
            self._made.flush(FLUSH_S if timeout is None else timeout)
        return 0

    def close(self) -> None:
        """Closes the connection. Messages that are queued but not yet sent are lost, so call ``flush`` first."""
        self._closed = True
        self._made = None
        self._stack.close()

    def _producer(self) -> TransactionProducer:
        if self._closed:
            raise MessageInvalid(
                "A message was given to a producer that is closed.",
                action="Send it inside the `with app.get_producer() as producer:` block.",
            )
        if self._made is None:
            self._made = self._stack.enter_context(self._connect())
        return self._made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.flush()
        finally:
            self.close()


@contextmanager
def _connected(cluster: Cluster) -> Iterator[TransactionProducer]:
    made = cluster.producer(None)
    try:
        yield made
    finally:
        made.close()


class ApplicationClients:
    """The base class of ``Application`` with the methods that read and write messages outside of streams."""

    consumer_group: str
    _offset_reset: str

    @property
    def frames(self) -> Mapping[str, Any]:
        """The stream of each input topic."""
        raise NotImplementedError  # `Application` implements this member

    def cluster(self, settings: Settings) -> Any:
        """The application's Kafka cluster."""
        raise NotImplementedError  # `Application` implements this member

    def _settings(self) -> Settings:
        raise NotImplementedError  # `Application` implements this member

    def get_consumer(self, auto_commit_enable: bool = True) -> Consumer:
        """Returns a consumer for messages outside of streams, with the application's client settings and group.

        Use it in a ``with`` block, in an application without streams.

        Args:
            auto_commit_enable: Whether stored offsets (marked with ``store_offsets``) are committed every 5 seconds and
                at the end of the block. If False, only ``commit`` commits them.
        """
        return self._consumer(lambda: nullcontext(self.cluster(self._settings())), commits=auto_commit_enable)

    def get_consumer_on(self, cluster: Cluster, auto_commit_enable: bool = True) -> Consumer:
        """Returns a consumer as ``get_consumer`` does, but for the Kafka cluster that the caller passes."""
        return self._consumer(lambda: nullcontext(cluster), commits=auto_commit_enable)

    def _consumer(self, connect: Callable[[], AbstractContextManager[Cluster]], *, commits: bool) -> Consumer:
        return Consumer(connect, self.consumer_group, self._offset_reset, lambda: bool(self.frames), commits=commits)

    def get_producer(self) -> Producer:
        """Returns a producer for messages outside of streams, such as test data.

        It has the application's client settings.

        Use it in a ``with`` block. If a function of a stream calls it, the message is sent at once, outside of the
        stream's transaction. The message stays sent even if the function's own input message then fails. ``to_topic``
        sends in the stream's transaction instead.
        """

        return Producer(lambda: _connected(self.cluster(self._settings())))

    def state_client(
        self, urls: Sequence[str] | None = None, token: str | None = None, *, timeout_s: float = 10.0
    ) -> StateClient:
        """Returns a client that reads this processor's state from its running workers.

        A function of a stream must not use it: it would wait for a worker, and the state of its own key is in
        ``State``.

        Args:
            urls: The addresses of workers; None finds the workers of this machine.
            token: The token of state that these workers accept; needed with ``urls``.
            timeout_s: Maximum seconds of one query with all its retries.

        Raises:
            StateClientWrong: The arguments contradict each other.
        """
        # loaded here, because most programs with an application never read state from outside
        from holdfast.processors.client.state_client import StateClient

        return StateClient(self.consumer_group, urls=urls, token=token, timeout_s=timeout_s)

    def get_producer_on(self, cluster: Cluster) -> Producer:
        """Returns a producer as ``get_producer`` does, but for the Kafka cluster that the caller passes.

        Example for a cluster in memory: ``app.get_producer_on(cluster.connect(InlineProcess(cluster.clock)))``.
        """
        return Producer(lambda: _connected(cluster))


def _raw(part: str, given: Any) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise _invalid(part, given, "bytes, a text or None", "`message = topic.serialize(key, value)`, and its bytes")


def _invalid(part: str, given: Any, expected: str, instead: str) -> MessageInvalid:
    return MessageInvalid(
        f"`{part}` of `produce` is {given!r} of type {type(given).__name__}; expected {expected}.",
        action=f"Pass {instead}.",
        seen=repr(given)[:80],
    )
