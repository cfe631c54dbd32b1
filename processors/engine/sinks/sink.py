"""The base classes of sinks, with the classes and the calls of Quix Streams.

The task collects results in memory, like its outputs to topics. Before each commit, the worker passes the results to
the sink, and flushes the sink. A failed message adds no result to a sink. A crash or an abort between flush and commit
repeats results, so a sink gets each result at least once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from holdfast.infra.kafka.records import Headers, Partition
from holdfast.processors.engine.connectors import ExternalSystem


@dataclass(frozen=True, slots=True)
class SinkItem:
    """One result in a batch; ``timestamp`` is in milliseconds since 1970."""

    value: Any
    key: Any
    timestamp: int
    headers: Headers
    offset: int


class SinkBatch:
    """The results of one partition since the last flush, in processing order."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self._items: list[SinkItem] = []

    @property
    def size(self) -> int:
        """The number of results."""
        return len(self._items)

    @property
    def start_offset(self) -> int | None:
        """The offset of the first result's message; None for an empty batch."""
        return self._items[0].offset if self._items else None

    def append(self, value: Any, key: Any, timestamp: int, headers: Headers, offset: int) -> None:
        """Adds one result."""
        self._items.append(SinkItem(value, key, timestamp, headers, offset))

    def clear(self) -> None:
        """Removes all results."""
        self._items.clear()

    def empty(self) -> bool:
        """Whether there is no result."""
        return not self._items

    def iter_chunks(self, n: int) -> Iterator[Iterable[SinkItem]]:
        """Yields the results in tuples of ``n`` results. The last tuple may be shorter."""
        items = iter(self._items)
        while chunk := tuple(islice(items, n)):
            yield chunk

    def __iter__(self) -> Iterator[SinkItem]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class BaseSink(ABC):
    """Base class of sinks: ``add`` gets each result, and ``flush`` stores all results that ``add`` has buffered.

    The worker calls all methods on one thread, in this order: ``setup`` once; ``assigned`` for each partition that the
    worker gets; then ``add`` for the results of one commit, and ``flush``; ``close`` at the end.

    Args:
        on_client_connect_success: Called without arguments after ``setup``.
        on_client_connect_failure: Called with the error that ``setup`` raised. The error is then not raised again.
    """

    def __init__(
        self,
        on_client_connect_success: Callable[[], None] | None = None,
        on_client_connect_failure: Callable[[Exception | None], None] | None = None,
    ) -> None:
        self._on_client_connect_success = on_client_connect_success
        self._on_client_connect_failure = on_client_connect_failure

    @property
    def connects_to(self) -> ExternalSystem:
        """The system that the sink writes, for Dagster and for the docs of the data. The default is unknown."""
        return ExternalSystem()

    @abstractmethod
    def add(
        self, value: Any, key: Any, timestamp: int, headers: Headers, topic: str, partition: int, offset: int
    ) -> None:
        """Gets one result, with topic, partition and offset of its message.

        The sink may buffer the result until ``flush``.
        """

    @abstractmethod
    def flush(self) -> None:
        """Stores all results.

        The worker calls it before each commit, and commits only if ``flush`` returns without an error.

        Raises:
            SinkBackpressureError: The system can't store results now.
            SinkRowsRefused: The system will never accept some of the results.
            SinkFenced: Another worker has one of the partitions now.
        """

    def setup(self) -> None:  # noqa: B027 # a sink without a connection needs none
        """Connects to the other system. The worker calls it before the first message."""

    def start(self) -> None:
        """Calls ``setup``, then ``on_client_connect_success`` or ``on_client_connect_failure``."""
        try:
            self.setup()
        except Exception as failure:
            if self._on_client_connect_failure is None:
                raise
            self._on_client_connect_failure(failure)
            return
        if self._on_client_connect_success is not None:
            self._on_client_connect_success()

    def assigned(self, processor: str, partitions: Sequence[Partition]) -> None:  # noqa: B027 # most sinks ignore it
        """Called before the first result of partitions that this worker has just got.

        Another worker may have had the partitions before, and may still be in a call of the other system.
        """

    def on_paused(self) -> None:  # noqa: B027 # a sink without a buffer needs none
        """Drops all buffered results.

        The worker calls it after it has abandoned a commit, and will add the same results again.
        """

    def close(self) -> None:  # noqa: B027 # a sink without a connection needs none
        """Closes the connection. The worker calls it when it ends. After ``setup``, the sink can be used again."""


class BatchingSink(BaseSink):
    """A sink that writes its results in batches. At each flush, ``write`` gets one batch for each partition."""

    def __init__(
        self,
        on_client_connect_success: Callable[[], None] | None = None,
        on_client_connect_failure: Callable[[Exception | None], None] | None = None,
    ) -> None:
        super().__init__(on_client_connect_success, on_client_connect_failure)
        self._batches: dict[tuple[str, int], SinkBatch] = {}

    @abstractmethod
    def write(self, batch: SinkBatch) -> None:
        """Stores a batch.

        A batch that is stored is not written again if the write of another batch meets backpressure.
        """

    def add(
        self, value: Any, key: Any, timestamp: int, headers: Headers, topic: str, partition: int, offset: int
    ) -> None:
        """Adds one result to the batch of its partition."""
        place = topic, partition
        if place not in self._batches:
            self._batches[place] = SinkBatch(topic, partition)
        self._batches[place].append(value, key, timestamp, headers, offset)

    def flush(self) -> None:
        """Calls ``write`` for each batch. A batch that is written is removed, and not written again."""
        for place in list(self._batches):
            self.write(self._batches[place])
            del self._batches[place]

    def on_paused(self) -> None:
        """Drops all batches."""
        self._batches.clear()
