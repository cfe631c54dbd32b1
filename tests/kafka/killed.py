"""One body for kill -9 on a real broker: workers, their input, the moments of the kills, and what must come of it.

A scenario says what differs::

    class Windows(Scenario):
        topology = ...          # what the processes run

        def course(self): ...   # feeds, and yields each kill
        def truth(self): ...    # what plain Python makes of the input, by output
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
from holdfast.infra.kafka.reader import read_range
from holdfast.infra.kafka.records import Record
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from tests.kafka.conftest import SESSION_MS, Stream, Worker, wait_for

#: Event times begin here: a whole number of windows since 1970.
BEGIN_MS = 1_690_000_000_000

#: The module that processes import: `made` is the application, `group` begins the name of each of its topics.
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
    """The first worker is killed as soon as something is so, and started again.

    Args:
        when: Gives something true when it is time.
        what: What that is, for people.
        loses_disk: Whether the killed worker's state is gone.
        meanwhile: Happens while it does not run.
    """

    when: Callable[[], Any]
    what: str
    loses_disk: bool = False
    meanwhile: Callable[[], Any] = lambda: None


class Scenario:
    """Workers of one topology, of which the first one is killed over and over."""

    #: Lines before `build`: imports, functions of steps, constants that make commits smaller.
    head = ""
    #: Lines of `build`.
    topology = ""
    #: Arguments of the application beyond those that all have, each with a comma behind it.
    options = ""
    session_ms = SESSION_MS

    def __init__(self, stream: Stream, worker: Callable[..., Worker], workers: int = 1) -> None:
        self.stream = stream
        self.drawn = random.Random(workers)
        self.workers = [worker(str(slot), home=f"home-{slot}") for slot in range(workers)]
        self.killed = self.workers[0]

    # -- what a scenario says --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Topics that are there before the processor's own."""

    def course(self) -> Iterator[Kill]:
        """Feeds, waits, and yields each kill; it goes on when the worker is started again."""
        raise NotImplementedError

    def truth(self) -> Mapping[str, Counter[Any]]:
        """By output, what must have been sent, each as often as it must."""
        raise NotImplementedError

    def sent(self, output: str) -> Counter[Any]:
        """What was sent, as `truth` has it."""
        raise NotImplementedError

    def check_running(self) -> None:
        """What else must come about while workers run."""

    def check_ended(self) -> None:
        """What else must hold when they have ended."""

    # -- the body --------------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Live through all of it, and compare."""
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
        for one in self.workers:  # all may be done before the last kill: the worker behind it may not have begun
            assert one.wait_running().terminate() == 0
        for output, wanted in truth.items():
            assert self.sent(output) == wanted
        self.check_ended()

    def begin(self) -> None:
        """All is there to start workers."""
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
        """The application that the processes run."""
        namespace: dict[str, Any] = {}
        exec(self.definition, namespace)
        made: Application = namespace["build"](self.stream.bootstrap, self.stream.group)
        return made

    # -- how far it is ---------------------------------------------------------------------------------------------

    def committed(self, topic: str | None = None) -> int:
        """How many offsets of a topic, or of all inputs, are committed."""
        each = self.stream.topics.committed_offsets(self.stream.group)
        return sum(offset for place, offset in each.items() if topic in (None, place.topic))

    def results(self) -> int:
        """How many records of committed transactions the output has; markers count, too."""
        return sum(self.stream.topics.end_offsets(self.stream.sink, committed=True).values())

    def has_committed(self, number: int) -> Callable[[], bool]:
        """Whether so many messages are committed, and no more are there."""
        return lambda: self.committed() == number

    def has_more_committed(self, topic: str | None = None) -> Callable[[], bool]:
        """Whether more is committed than now."""
        before = self.committed(topic)
        return lambda: self.committed(topic) > before

    def has_more_results(self, number: int = 0) -> Callable[[], bool]:
        """Whether more than so many results came since now."""
        before = self.results()
        return lambda: self.results() > before + number

    def lose_disk(self) -> None:
        """The killed worker's state is gone, if it had a task with state."""
        if self.killed.paths.state.exists():
            shutil.rmtree(self.killed.paths.state)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until something is so, also where the killed worker does not run."""
        return wait_for(condition, what)

    # -- what the topics hold --------------------------------------------------------------------------------------

    def topic(self, name: str) -> str:
        return f"{self.stream.group}-{name}"

    def partitions(self) -> Iterator[list[Record]]:
        """By partition, the records of the source."""
        for number, end in sorted(self.stream.topics.end_offsets(self.stream.source, committed=True).items()):
            yield read_range(self.stream.bootstrap, self.stream.source, number, 0, end)

    def stored(self, store: str) -> dict[tuple[bytes, str], Any]:
        """What the changelog of a store holds."""
        state: dict[tuple[bytes, str], Any] = {}
        for record in self.stream.read(self.topic(f"{store}-changelog")):
            if record.key == META_KEY:
                continue
            place = split_key(record.key or b"")
            state[place] = None if record.value is None else decode_value(record.value)
        return {place: value for place, value in state.items() if value is not None}

    def documents(self, output: str, made: Callable[[Record, Any], Hashable]) -> Counter[Any]:
        """What is made of each record of a topic and the JSON in it."""
        records = self.stream.read(self.topic(output))
        return Counter(made(record, json.loads(record.value or b"null")) for record in records)
