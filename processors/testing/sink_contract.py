"""What every sink must do, as tests that users run on theirs.

    class TestRows(SinkContract):
        def make_sink(self) -> Rows:
            return Rows(self.folder / "rows.db")

        def stored(self) -> Counter:
            return Counter({(key, n): 1 for key, n in read(self.folder / "rows.db")})

pytest collects the subclass with the tests below. They run an application with the sink on an ``InMemoryCluster``, and
end it as ``kill -9`` does, before and after each call of the sink.
"""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from holdfast.processors.application.application import Application
from holdfast.processors.engine.sinks.errors import SinkBackpressureError
from holdfast.processors.engine.sinks.sink import BaseSink
from holdfast.processors.testing.cluster import InMemoryCluster

#: Number of messages of one run, and of their keys.
MESSAGES, KEYS = 30, 5


class Killed(BaseException):
    """Ends a run at once, as ``kill -9`` does. The worker can't catch it."""


class SinkContract(ABC):
    """Base class of tests for one sink. A subclass says how to make the sink, and what its system has stored.

    The application sends values of the form ``{"n": number}`` with keys ``k0`` to ``k4`` as text.

    Attributes:
        keeps: ``newest`` if the system has the newest result of each key, for example the rows of a table. ``each`` if
            it has all results, for example the lines of a file.
        repeats: Whether a kill may repeat results. Only a sink that keeps each result may do that.
    """

    keeps: ClassVar[Literal["newest", "each"]] = "newest"
    repeats: ClassVar[bool] = False
    #: A new folder for each test.
    folder: Path

    @abstractmethod
    def make_sink(self) -> BaseSink:
        """Returns a new sink of the same system, as each start of a worker does."""

    @abstractmethod
    def stored(self) -> Counter[tuple[str, int]]:
        """Returns what other programs read from the system: key and number of each result, with its count."""

    def setup_method(self) -> None:
        """Makes a folder before each test; pytest calls it."""
        self._made = tempfile.TemporaryDirectory(prefix="holdfast-sink-")
        self.folder = Path(self._made.name)

    def teardown_method(self) -> None:
        """Removes the folder after each test; pytest calls it."""
        self._made.cleanup()

    # -- tests --------------------------------------------------------------------------------------------------------

    def test_the_system_has_what_the_results_say(self) -> None:
        """Each result is stored; a system that keeps the newest result has that of the last message."""
        cluster = self.cluster()
        cluster.run(self.application(self.make_sink()))
        self.check()

    def test_further_results_are_added_by_the_next_start(self) -> None:
        """A closed sink can be replaced by a new one, which continues."""
        cluster = self.cluster(MESSAGES // 2)
        cluster.run(self.application(self.make_sink()))
        self.feed(cluster, MESSAGES // 2, MESSAGES)
        cluster.run(self.application(self.make_sink()))
        self.check()

    def test_a_kill_at_any_call_loses_nothing(self) -> None:
        """A kill before or after each call of the sink leaves the same content, after the next start has finished."""
        killed = 0
        for _, kill in self.kills():
            self.teardown_method()
            self.setup_method()
            cluster, sink = self.cluster(), self.make_sink()
            kill(sink)
            try:
                cluster.run(self.application(sink))
            except Killed:
                killed += 1
            cluster.run(self.application(self.make_sink()))
            self.check()
        assert killed > 0, "the sink was never called"

    def test_results_of_an_abandoned_commit_are_dropped(self) -> None:
        """After ``on_paused``, the sink stores nothing of what it has got before."""
        sink = self.make_sink()
        sink.start()
        sink.add({"n": 1}, "k1", 0, None, "in", 0, 1)
        sink.on_paused()
        sink.flush()
        assert self.stored().total() == 0 or self.repeats
        sink.close()

    # -- parts --------------------------------------------------------------------------------------------------------

    def kills(self) -> Iterator[tuple[str, Callable[[BaseSink], None]]]:
        """Yields functions that let a sink's worker die at a call of the sink, with their names."""
        for method in self.killed_methods(self.make_sink()):
            for after in (False, True):
                yield f"{'after' if after else 'before'} {method}", partial(dies_at, method=method, after=after)

    @staticmethod
    def killed_methods(sink: BaseSink) -> list[str]:
        """The methods at which a worker may die."""
        return [each for each in ("add", "flush", "write", "stage", "publish") if hasattr(sink, each)]

    def application(self, sink: BaseSink) -> Application:
        """Returns the application whose results go to the sink."""
        app = Application("in-memory", consumer_group="contract", auto_offset_reset="earliest", loglevel=None)
        app.dataframe(app.topic("in", key_deserializer="str")).sink(sink)
        return app

    def cluster(self, count: int = MESSAGES) -> InMemoryCluster:
        """Returns a cluster with a topic of two partitions, and its first messages."""
        cluster = InMemoryCluster()
        cluster.create_topic("in", 2)
        self.feed(cluster, 0, count)
        return cluster

    @staticmethod
    def feed(cluster: InMemoryCluster, first: int, last: int) -> None:
        """Adds messages to the topic."""
        for number in range(first, last):
            cluster.produce("in", json.dumps({"n": number}).encode(), b"k%d" % (number % KEYS))

    def check(self) -> None:
        """Compares the content of the system with the messages."""
        each = Counter((f"k{number % KEYS}", number) for number in range(MESSAGES))
        wanted = (
            each if self.keeps == "each" else Counter(dict(sorted(each.items(), key=lambda one: one[0][1])[-KEYS:]))
        )
        found = self.stored()
        assert set(found) == set(wanted)
        assert found == wanted or (self.repeats and all(found[one] >= count for one, count in wanted.items()))


class PausingSinkContract(SinkContract):
    """More tests, for a sink whose system may be away for a while. A subclass says how it goes away."""

    @abstractmethod
    def away(self) -> AbstractContextManager[None]:
        """A context manager: inside the block, the system does not answer."""

    def test_a_system_that_is_away_pauses_the_worker(self) -> None:
        """While the system is away, the sink raises SinkBackpressureError. Then it stores the same results."""
        cluster, sink = self.cluster(), self.make_sink()
        waited: list[float] = []
        real, blocks = sink.flush, [self.away()]

        def flush() -> None:
            if not blocks:
                real()
                return
            with blocks.pop():
                try:
                    real()
                    return
                except SinkBackpressureError as pressed:
                    waited.append(pressed.retry_after)
                    seen = pressed
            raise seen  # outside of the block, whose function then needs no `try`

        sink.flush = flush  # type: ignore[method-assign]
        cluster.run(self.application(sink))
        assert waited, "the sink did not raise SinkBackpressureError while its system was away"
        self.check()


def dies_at(sink: BaseSink, method: str, after: bool) -> None:
    """Lets the worker of a sink die at the first call of a method."""
    real = getattr(sink, method)

    def killed(*given: Any, **named: Any) -> Any:
        if after:
            real(*given, **named)
        raise Killed

    setattr(sink, method, killed)
