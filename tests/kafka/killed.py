"""The common part of tests that kill workers (kill -9) on a real broker.

It runs workers, feeds input, kills and checks.

A scenario is a subclass that defines what differs::

    class Windows(Scenario):
        topology = ...          # the topology that the processes run

        def course(self): ...   # feeds input, and yields each kill
        def truth(self): ...    # the expected outputs, computed in plain Python from the input
        def sent(self, output): ...

    Windows(stream, worker).live()
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from textwrap import dedent, indent
from typing import Any

from holdfast import Application
from holdfast.infra.kafka.records import Record
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from tests.kafka.conftest import SESSION_MS, Stream, Worker, wait_for
from tests.mechanics.constants import build_of

#: The first event time. It is a multiple of the window size since the epoch.
BEGIN_MS = 1_690_000_000_000

#: The module that worker processes import. `made` is the application. The names of all topics begin with `group`.
DEFINITION = """
import os

from holdfast import Application
{head}

def build(bootstrap, group, **settings):
    made = Application(
        bootstrap, consumer_group=group, auto_offset_reset="earliest", commit_interval=0.2, loglevel=None,
        consumer_extra_config={{"session.timeout.ms": {session_ms}, "heartbeat.interval.ms": {heartbeat_ms}}},
        {options}**settings,
    )
{topology}
    return made


if "TEST_GROUP" in os.environ:
    application = build(os.environ["TEST_BOOTSTRAP"], os.environ["TEST_GROUP"])
"""


@dataclass(frozen=True)
class Kill:
    """One kill: the first worker is killed once a condition holds, and started again.

    Args:
        when: The condition for the kill; it holds when the function returns a true value.
        what: Names the condition in the error after a timeout.
        loses_disk: Whether the killed worker's state is deleted.
        meanwhile: Called while the worker is down.
    """

    when: Callable[[], Any]
    what: str
    loses_disk: bool = False
    meanwhile: Callable[[], Any] = lambda: None


class Scenario:
    """Workers of one topology, the first of which is killed several times."""

    #: Source lines above `build`: imports, functions of steps, constants that make commits smaller.
    head = ""
    #: Source lines inside `build`: the topology's steps.
    topology = ""
    #: Additional arguments of the application, as source text; each ends with a comma.
    options = ""
    session_ms = SESSION_MS

    def __init__(self, stream: Stream, worker: Callable[..., Worker], workers: int = 1) -> None:
        self.stream = stream
        self.drawn = random.Random(workers)
        self.workers = [worker(str(slot), home=f"home-{slot}") for slot in range(workers)]
        self.killed = self.workers[0]

    # -- defined by each scenario --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create topics that must exist before the processor's own topics are provisioned."""

    def course(self) -> Iterator[Kill]:
        """Feed input, wait, and yield each kill. The generator resumes after the killed worker was started again."""
        raise NotImplementedError

    def truth(self) -> Mapping[str, Counter[Any]]:
        """The expected outputs by output topic, each with its number of occurrences."""
        raise NotImplementedError

    def sent(self, output: str) -> Counter[Any]:
        """The actual outputs of a topic, in the form that `truth` uses."""
        raise NotImplementedError

    def check_running(self) -> None:
        """Run additional checks while workers run; a scenario may override this."""

    def check_ended(self) -> None:
        """Run additional checks after the workers have stopped; a scenario may override this."""

    # -- common to all scenarios --------------------------------------------------------------------------------------

    def live(self) -> None:
        """Run the workers through all kills, then compare the outputs with `truth`."""
        self.begin()
        for one in self.workers:
            one.start()
        for kill in self.course():
            self.killed.waiting(kill.when, kill.what)
            self.killed.kill()
            if kill.loses_disk:
                self.lose_disk()
            kill.meanwhile()
            self.killed.start()
        truth = self.truth()
        for output, wanted in truth.items():
            self.killed.waiting(
                lambda output=output, wanted=wanted: self.sent(output).total() >= wanted.total(), f"all of {output}"
            )
        self.check_running()
        # All input may be processed before the last kill, so the restarted worker may still be starting.
        for one in self.workers:
            assert one.wait_running().terminate() == 0
        for output, wanted in truth.items():
            assert self.sent(output) == wanted
        self.check_ended()

    def begin(self) -> None:
        """Prepare topics and definitions, so that workers can start."""
        self.stream.application = self.application  # type: ignore[method-assign]
        self.prepare()
        self.stream.provision()
        for one in self.workers:
            (one.paths.home / "counting_definition.py").write_text(self.definition)

    @property
    def definition(self) -> str:
        return DEFINITION.format(
            head=dedent(self.head),
            options=self.options,
            session_ms=self.session_ms,
            heartbeat_ms=self.session_ms // 4,
            topology=indent(dedent(self.topology).strip("\n"), "    "),
        )

    def application(self) -> Application:
        """The same application as in the worker processes, for provisioning and inspection."""
        made: Application = build_of(self.definition)(self.stream.bootstrap, self.stream.group)
        return made

    # -- progress -----------------------------------------------------------------------------------------------------

    def committed(self, topic: str | None = None) -> int:
        """The sum of the committed offsets of one topic, or of all inputs."""
        each = self.stream.topics.committed_offsets(self.stream.group)
        return sum(offset for place, offset in each.items() if topic in (None, place.topic))

    def results(self) -> int:
        """Return how many offsets of the output topic read_committed readers see. Transaction markers are included."""
        return sum(self.stream.topics.end_offsets(self.stream.sink, committed=True).values())

    def has_committed(self, number: int) -> Callable[[], bool]:
        """A condition: the sum of the committed offsets is exactly this number."""
        return lambda: self.committed() == number

    def has_more_committed(self, topic: str | None = None) -> Callable[[], bool]:
        """A condition: the sum of the committed offsets has grown since this call."""
        before = self.committed(topic)
        return lambda: self.committed(topic) > before

    def has_more_results(self, number: int = 0) -> Callable[[], bool]:
        """A condition: more than this number of outputs were added since this call."""
        before = self.results()
        return lambda: self.results() > before + number

    def lose_disk(self) -> None:
        """Delete the killed worker's state, if it had any."""
        if self.killed.paths.state.exists():
            shutil.rmtree(self.killed.paths.state)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition, without the check that the killed worker runs."""
        return wait_for(condition, what)

    # -- content of the topics ----------------------------------------------------------------------------------------

    def topic(self, name: str) -> str:
        return f"{self.stream.group}-{name}"

    def partitions(self) -> Iterator[list[Record]]:
        """The committed records of the source topic, one list for each partition."""
        for number, end in sorted(self.stream.topics.end_offsets(self.stream.source, committed=True).items()):
            yield read_range(self.stream.bootstrap, self.stream.source, number, 0, end)

    def stored(self, store: str) -> dict[tuple[bytes, str], Any]:
        """The state in the changelog of a store: the newest value of each key."""
        state: dict[tuple[bytes, str], Any] = {}
        for record in self.stream.read(self.topic(f"{store}-changelog")):
            if record.key == META_KEY:
                continue
            place = split_key(record.key or b"")
            state[place] = None if record.value is None else decode_value(record.value)
        return {place: value for place, value in state.items() if value is not None}

    def documents(self, output: str, made: Callable[[Record, Any], Hashable]) -> Counter[Any]:
        """Count the results of calling ``made`` with each record of a topic and its decoded JSON."""
        records = self.stream.read(self.topic(output))
        return Counter(made(record, json.loads(record.value or b"null")) for record in records)
