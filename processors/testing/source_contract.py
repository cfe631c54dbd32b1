"""``SourceContract``: tests that a ``StatefulSource`` resumes exactly, for your own sources.

A subclass says how to make the source, and which messages it must send. Pytest then runs the tests of this class on the
in-memory cluster, with kills, aborted transactions and lost answers.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.processors.testing.cluster import QUIET_S, InMemoryCluster
from holdfast.processors.testing.network import Fate, Network
from holdfast.processors.testing.process import InlineProcess

if TYPE_CHECKING:
    from holdfast.processors.application.application import Application
    from holdfast.processors.engine.sources.source import StatefulSource

#: A message: its key and its value.
Message = tuple[bytes | None, bytes | None]

#: The steps of a commit at which a worker is killed.
STEPS = (
    "produce:before",
    "flush:before",
    "flush:after",
    "send_offsets:before",
    "send_offsets:after",
    "commit:before",
    "commit:sent",
    "commit:after",
)
#: Virtual seconds after which the group has forgotten a killed worker.
_FORGOTTEN_S = 60.0
#: Methods of a source before which a worker is killed. ``state`` stands for each use of the state.
_CALLS = ("produce", "flush", "sleep", "serialize")


class _Killed(BaseException):
    """Ends the worker as ``kill -9`` does: nothing is committed or closed."""


class _Doomed(InlineProcess):
    """A process that is killed at the ``number``-th call of a step, or as soon as ``dies`` is set."""

    def __init__(self, cluster: InMemoryCluster, step: str = "", number: int = 1) -> None:
        super().__init__(cluster.clock)
        self._step, self._left = step, number
        self.dies = False

    def point(self, name: str) -> None:
        self._left -= name == self._step
        self.dies = self.dies or (bool(self._step) and self._left <= 0)
        if self.dies:
            self.frozen = True
            raise _Killed


class _Faulty(Network):
    """A network on which the first request of a kind after ``arm`` has the given fate."""

    def __init__(self, request: str, fate: Fate) -> None:
        super().__init__()
        self._request, self._fate = request, fate
        self._armed = False

    def arm(self) -> None:
        self._armed = True

    def fate(self, process: str, request: str) -> Fate:
        if not self._armed or request != self._request:
            return Fate.OK
        self._armed = False
        return self._fate


class SourceContract:
    """Tests of a source. Derive a class from it, whose name begins with ``Test``, and run pytest.

    The tests change nothing outside of the source: ``prepare`` must bring the system that the source reads back to its
    begin. The source must end by itself, or wait by ``self.sleep``, once all messages are sent.

    Attributes:
        ordered: Whether the messages must come in the order of ``expected``.
        kills_max: Maximum number of kills between two calls. With more calls, the kills are spread evenly.
        quiet_s: Virtual seconds without a message after which a source counts as ended.
    """

    ordered = True
    kills_max = 60
    quiet_s = QUIET_S

    # -- what a subclass says ----------------------------------------------------------------------------------------

    def source(self) -> StatefulSource:
        """Returns a new object of the source. Each start of a worker gets one."""
        raise NotImplementedError

    def expected(self) -> Sequence[Message]:
        """Returns the messages, key and value as bytes. The source must send each of them exactly once."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Brings the system that the source reads back to its begin. The default does nothing."""

    # -- the contract ------------------------------------------------------------------------------------------------

    def test_each_message_is_sent_once(self) -> None:
        """A second start after the end sends nothing more."""
        life = self._begin()
        for _ in range(2):
            life.live()
        life.check("two starts without a fault")

    def test_it_resumes_after_each_unit(self) -> None:
        """Each life commits one unit and is killed. The next one begins behind it."""
        life = self._begin()
        lives = 0
        while life.live(_Doomed(life.cluster, "commit:after")):
            lives += 1
            assert lives <= 10 * len(self.expected()) + 10, "each start commits, and the source makes no progress"
        life.check(f"{lives} kills, each after a commit")

    def test_a_kill_at_each_step_of_a_commit_loses_and_doubles_nothing(self) -> None:
        """A worker is killed at each step of its first and of its second commit."""
        for step in STEPS:
            for number in (1, 2):
                life = self._begin()
                life.live(_Doomed(life.cluster, step, number))
                life.live()
                life.check(f"a kill at step {step!r}, the {number}. time")

    def test_a_kill_between_any_two_calls_loses_and_doubles_nothing(self) -> None:
        """A worker is killed before each call that the source makes."""
        life = self._begin()
        life.live()
        calls = life.calls
        assert calls, "the source calls neither `produce`, `flush`, `sleep` nor `state`"
        step = max(1, -(-calls // self.kills_max))
        for number in range(1, calls + 1, step):
            life = self._begin()
            life.live(_Doomed(life.cluster), dies_before=number)
            life.live()
            life.check(f"a kill before call {number} of {calls}")

    def test_an_aborted_or_unknown_commit_loses_and_doubles_nothing(self) -> None:
        """A request of a commit, or its answer, is lost, or comes late."""
        for request in ("send_offsets", "commit"):
            for fate in (Fate.LOST, Fate.REPLY_LOST, Fate.DELAYED):
                network = _Faulty(request, fate)
                life = self._begin(network)
                life.on_first_call = network.arm
                life.live(quiet_s=max(self.quiet_s, _FORGOTTEN_S))
                life.check(f"request {request!r} that {fate.value}")

    def test_a_stop_ends_the_source(self) -> None:
        """A source that is stopped ends ``run``, and the next start continues."""
        life = self._begin()
        life.live(stops_after=1)
        assert life.returned, "`run` did not return after `running` became False"
        life.live()
        life.check("a stop after the first message")

    def _begin(self, network: Network | None = None) -> _Life:
        self.prepare()
        return _Life(self, InMemoryCluster(network=network))


class _Life:
    """The lives of one processor with the source, on one cluster."""

    def __init__(self, contract: SourceContract, cluster: InMemoryCluster) -> None:
        self._contract, self.cluster = contract, cluster
        self._topic = ""
        self.calls = 0
        self.on_first_call: Callable[[], None] = lambda: None
        #: Whether ``run`` returned in the last life, instead of being ended by SourceStopped.
        self.returned = False

    def live(
        self,
        process: InlineProcess | None = None,
        *,
        dies_before: int = 0,
        stops_after: int = 0,
        quiet_s: float | None = None,
    ) -> bool:
        """Runs a worker until the source is quiet. Returns whether the worker was killed."""
        process = process or InlineProcess(self.cluster.clock)
        source = self._contract.source()
        runs: list[Any] = []
        self.calls, self.returned = 0, False

        def returned() -> None:
            self.returned = True

        def called(copy: Any) -> None:
            if copy not in runs:
                runs.append(copy)
            self.calls += 1
            if self.calls == 1:
                self.on_first_call()
            if self.calls == dies_before:
                process.dies = True  # type: ignore[attr-defined]
                copy._handover.sleep(1e9)  # the loop goes on to its next step, and dies there

        app = self._application(_calling(source, called, returned))
        killed = False
        try:
            with tempfile.TemporaryDirectory() as home:
                settings = self.cluster._settings.model_copy(update={"home": Path(home)})
                view = self.cluster.connect(process)
                app.run_on(view, settings, count=stops_after, timeout=quiet_s or self._contract.quiet_s)
        except _Killed:
            killed = True
        finally:
            process.frozen = True
            for copy in runs:
                copy._handover.close()
                copy._handover.wait_ended(source.shutdown_timeout)
            InlineProcess(self.cluster.clock).sleep(_FORGOTTEN_S)
        return killed

    def check(self, course: str) -> None:
        """Compares the messages with the expected ones. ``course`` names what happened, for the error."""
        sent = [(record.key, record.value) for _, record in self.cluster.read(self._topic)]
        wanted = list(self._contract.expected())
        lost, more = Counter(wanted) - Counter(sent), Counter(sent) - Counter(wanted)
        assert not lost, f"after {course}: {lost.total()} messages are lost, for example {next(iter(lost))}"
        assert not more, f"after {course}: {more.total()} messages are too many, for example {next(iter(more))}"
        assert sent == wanted or not self._contract.ordered, f"after {course}: the messages are in another order"

    def _application(self, source: StatefulSource) -> Application:
        from holdfast.processors.application.application import Application

        app = Application(
            "in-memory",
            consumer_group="source-contract",
            auto_offset_reset="earliest",
            state_backend="memory",
            loglevel=None,
        )
        self._topic = app.add_source(source).name
        return app


def _calling(source: StatefulSource, called: Callable[[Any], None], returned: Callable[[], None]) -> StatefulSource:
    """Lets a source call ``called`` before each of its calls, and ``returned`` after ``run`` has returned."""
    kind = type(source)

    def calling(name: str) -> Callable[..., Any]:
        def method(self: Any, *given: Any, **named: Any) -> Any:
            called(self)
            return getattr(kind, name)(self, *given, **named)

        return method

    def state(self: Any) -> Any:
        called(self)
        return kind.state.fget(self)  # type: ignore[attr-defined]

    def run(self: Any) -> None:
        kind.run(self)
        returned()

    members: dict[str, Any] = {name: calling(name) for name in _CALLS}
    source.__class__ = type(kind.__name__, (kind,), {**members, "run": run, "state": property(state)})
    return source
