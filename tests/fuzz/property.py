"""The fuzzed property: for all messages and functions, the engine's state and outputs equal those of plain Python.

A message that fails changes no state and sends no output.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from holdfast import Application, InlineProcess, InMemoryCluster, load_settings
from holdfast.infra.kafka.records import Record
from holdfast.infra.settings import CheckpointSettings, Settings
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from tests.fuzz.plans import BYTES_MAX, MESSAGES, SERIALIZERS, Done, Message, Model, parsed, perform, shown

GROUP, INPUT, OUTPUT, DEAD, STORE = "fuzzed", "in", "out", "dead", "s"
#: Configuration of the input topic, which accepts timestamps far in the future.
AHEAD = {"message.timestamp.after.max.ms": str(2**63 - 1)}
#: Configurations of the output topic. They differ in the timestamps that the topic accepts: distant past, distant
#: future.
OUTPUT_CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {"message.timestamp.before.max.ms": "86400000"},
    {"message.timestamp.type": "LogAppendTime"},
)


class Broken(AssertionError):
    """The engine's result differs from that of plain Python."""


class NoPlan(Exception):
    """The user's function got a message that is not a JSON object with the number of a fuzzed message."""


class Killed(BaseException):
    """An error that simulates a SIGKILL of the worker."""


class Doomed(InlineProcess):
    """A process that is killed after ``points`` points (steps of calls to the cluster, such as the start of a commit).

    Its later calls have no effect.
    """

    def __init__(self, cluster: InMemoryCluster, points: int) -> None:
        super().__init__(cluster.clock, "doomed")
        self._left = points

    def point(self, name: str) -> None:
        self._left -= 1
        if self._left < 0:
            self.frozen = True
            raise Killed


@dataclass(frozen=True, slots=True)
class Case:
    """One example.

    ``policy`` decides what the worker does with a failed message. ``dies_at`` is the number of the point (step of a
    call to the cluster) at which the worker is killed. None means no kill.
    """

    messages: tuple[Message, ...]
    serializer: str
    policy: str
    exactly_once: bool
    backend: str
    commit_every: int
    output_config: int
    dies_at: int | None


CASES = st.builds(
    Case,
    st.lists(MESSAGES, min_size=1, max_size=8).map(tuple),
    st.sampled_from(("json", "json", "json", *sorted(SERIALIZERS))),
    st.sampled_from(("dead letters", "skip", "stop")),
    st.booleans(),
    st.sampled_from(("memory", "memory", "memory", "rocksdb")),
    st.sampled_from((0, 1, 3)),
    st.integers(0, len(OUTPUT_CONFIGS) - 1),
    st.one_of(st.none(), st.integers(0, 60)),
)


class Run:
    """Runs one case on its own cluster in memory."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case, self._folder = case, folder
        config = OUTPUT_CONFIGS[case.output_config]
        appended, short = "message.timestamp.type" in config, "message.timestamp.before.max.ms" in config
        model = Model(case.serializer, takes_past=not short, takes_future=appended)
        self._expected = model.fold(case.messages)
        self._misread: list[str] = []
        self._cluster = InMemoryCluster()
        small = {"max.message.bytes": str(BYTES_MAX)}
        compacted = {"cleanup.policy": "compact", **small}
        for topic, entries in (
            (INPUT, AHEAD),
            (OUTPUT, {**small, **config}),
            (changelog_topic(GROUP, STORE), compacted),
        ):
            self._cluster.create_topic(topic, config=entries)
        self._cluster.create_topic(DEAD)
        for number, message in enumerate(case.messages):
            raw = message.raw if message.ops is None else json.dumps({"n": number}).encode()
            self._cluster.produce(
                INPUT, raw, message.key, timestamp_ms=message.time_ms, headers=list(message.headers) or None
            )

    def check(self) -> None:
        """Run the case to its end, and compare the engine's result with plain Python's.

        Raises:
            Broken: The two results differ.
        """
        done = self._expected
        stops = next((place for place, each in enumerate(done) if each.errors), None)
        if self._case.policy != "stop" or stops is None:
            stops = len(done)
        self._process(stops)
        self._compare(done[:stops])

    def _process(self, stops: int) -> None:
        if self._case.dies_at is not None:
            settings = _settings().model_copy(update={"home": self._folder})
            try:
                view = self._cluster.connect(Doomed(self._cluster, self._case.dies_at))
                self._application().run_on(view, settings, timeout=3)
            except (Killed, ProcessingFailed):
                pass
        try:
            self._cluster.run(self._application())
        except ProcessingFailed as failure:
            if stops == len(self._expected) or failure.fields["offset"] != stops:
                raise Broken(f"the worker stopped, expected offset {stops}: {failure}") from failure
            if failure.fields["error"] not in self._expected[stops].errors:
                raise Broken(f"{failure.fields['error']}, expected {self._expected[stops].errors}") from failure
        else:
            if stops < len(self._expected):
                raise Broken(f"the worker did not stop at offset {stops}")

    def _application(self) -> Application:
        case, policy = self._case, dict[str, Any]()
        if case.policy == "dead letters":
            policy["dead_letter_topic"] = DEAD
        elif case.policy == "skip":
            policy["on_processing_error"] = lambda *_: True
        app = Application(
            consumer_group=GROUP,
            auto_offset_reset="earliest",
            processing_guarantee="exactly-once" if case.exactly_once else "at-least-once",
            commit_every=case.commit_every,
            state_dir=self._folder / "state",
            state_backend=case.backend,  # type: ignore[arg-type]
            loglevel=None,
            **policy,
        )
        out = app.topic(OUTPUT, value_serializer=SERIALIZERS[case.serializer])
        frame = app.dataframe(app.topic(INPUT)).apply(self._work, stateful=True, store=STORE)
        frame.apply(self._returned).to_topic(out, key=self._out_key, headers=self._out_headers)
        return app

    # -- the user's functions under test: each gets its plan by the number of the message
    # -------------------------------

    def _work(self, value: Any, state: Any) -> int:
        if not isinstance(value, dict) or not isinstance(value.get("n"), int):
            raise NoPlan
        number: int = value["n"]
        message, reads = self._case.messages[number], []
        self._number = number
        try:
            for op in message.ops or ():
                try:
                    reads.append(shown(perform(op, state)))
                except (Exception, SystemExit, GeneratorExit):
                    if not op.caught:
                        raise
        finally:
            if tuple(reads) != self._expected[number].reads:
                self._misread.append(f"message {number} read {reads}, expected {self._expected[number].reads}")
        return number

    def _returned(self, number: int) -> Any:
        return self._case.messages[number].returns

    def _out_key(self, value: Any) -> Any:
        return self._case.messages[self._number].out_key

    def _out_headers(self, value: Any) -> Any:
        return self._case.messages[self._number].out_headers

    # -- comparisons with the expected result --------------------------------------------------------------------------

    def _compare(self, done: Sequence[Done]) -> None:
        if self._misread:
            raise Broken("; ".join(self._misread))
        state = done[-1].state if done else {}
        held = self._cluster.state(self._application(), STORE)
        if sorted(map(shown, held.items())) != sorted(map(shown, state.items())):
            raise Broken(f"state is {held}, expected {state}")
        sent = [shown(self._sent(record)) for _, record in self._cluster.read(OUTPUT)]
        wanted = [shown((each.sent.key, each.sent.value, each.sent.headers)) for each in done if each.sent is not None]
        self._same("outputs", sent, wanted)
        if self._case.policy == "dead letters":
            self._check_dead_letters(done)

    def _sent(self, record: Record) -> tuple[Any, ...]:
        return record.key, parsed(self._case.serializer, record.value), tuple(record.headers or ())

    def _check_dead_letters(self, done: Sequence[Done]) -> None:
        places = []
        for _, record in self._cluster.read(DEAD):
            headers = dict(record.headers or ())
            place = int((headers["holdfast.offset"] or b"").decode())
            message, error = self._case.messages[place], (headers["holdfast.error.type"] or b"").decode()
            if error not in done[place].errors:
                raise Broken(f"message {place} failed by {error}, expected {set(done[place].errors)}")
            given = message.raw if message.ops is None else json.dumps({"n": place}).encode()
            kept = tuple((record.headers or ())[: len(message.headers)])
            if (record.key, record.value, kept) != (message.key, given, message.headers):
                raise Broken(f"the dead letter of message {place} is not the message: {record}")
            places.append(str(place))
        self._same("dead letters", places, [str(place) for place, each in enumerate(done) if each.errors])

    def _same(self, what: str, seen: list[str], wanted: list[str]) -> None:
        if self._case.exactly_once or self._case.dies_at is None:
            if seen != wanted:
                raise Broken(f"{what} are {seen}, expected {wanted}")
        elif set(seen) != set(wanted) or Counter(wanted) - Counter(seen):
            raise Broken(f"{what} are {seen}, expected {wanted}, some of them more than once")


@cache
def _settings() -> Settings:
    return load_settings(checkpoints=CheckpointSettings(enabled=False))


def check(case: Case) -> None:
    """Check one example.

    Raises:
        Broken: The engine's result differs from that of plain Python. Errors of the engine are passed on.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-fuzz-") as folder:
        Run(case, Path(folder)).check()
