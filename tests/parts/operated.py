"""One processor under a supervisor and a real broker, and the lifecycle verbs (deploy, provision and so on) for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from holdfast.infra.database.records import ApplyRecord
from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import PROJECT, Settings, load_settings
from holdfast.infra.system.holders import is_gone, new_holder
from holdfast.orchestration.verbs import Verbs, open_verbs
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.plans.apply import Applied, Holder
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.plans.requests import Deploy, Provision, Request
from tests.oracles.fold import fold_changelog

PARTITIONS = 2
#: Seconds to wait for a condition that takes a few seconds on an idle machine.
PATIENCE_S = 120.0
#: Environment variable: if it is set, the processor has a second stream, with tasks and a store of its own.
SECOND_STREAM = "TEST_SECOND_STREAM"
DEFINITION = """
import os

from holdfast import Application

application = Application(
    consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.2,
    consumer_extra_config={{"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}},
)

def count(value, state):
    state.set("n", state.get("n", 0) + 1)
    return state.get("n")

frame = application.dataframe(application.topic("{group}-in"))
frame = frame.apply(count, stateful=True, store="counts")
frame.to_topic(application.topic("{group}-out"))
if os.environ.get("TEST_SECOND_STREAM"):
    application.dataframe(application.topic("{group}-second")).apply(count, stateful=True, store="seconds")
"""


class Killed(BaseException):
    """Raised to end an apply (execution of a plan) as if its process were killed.

    All holders (processes that execute plans) made so far then count as dead.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        _gone.update(_made)


#: Names of holders (processes that execute plans). ``_made``: made by this process. ``_gone``: they count as dead.
_made: set[str] = set()
_gone: set[str] = set()


def mortal_holder() -> Holder:
    """A holder (a process that executes plans), as verbs create it. `Killed` counts it as dead although it lives."""
    name = new_holder()
    _made.add(name)
    return Holder(name, lambda other: other in _gone or is_gone(other))


def killing_at_stages(struck: set[str]) -> Callable[[str], None]:
    """A progress callback that raises `Killed` once at the start of each stage.

    ``struck`` collects the names of these stages: ``stage 1``, ``stage 2`` and so on.
    """

    def strike(text: str) -> None:
        print(text)
        mark = text.partition(" of ")[0] if text.startswith("stage ") else ""
        if mark and mark not in struck:
            struck.add(mark)
            raise Killed(text)

    return strike


def exported_by(text: str) -> Path:
    """Return the export file that a stage's progress text names."""
    (path,) = re.findall(r"written before to (\S+\.jsonl)", text)
    return Path(path)


@dataclass
class Operated:
    """One processor that counts messages by key, and the lifecycle verbs for it."""

    group: str
    settings: Settings
    verbs: Verbs
    topics: Topics

    @property
    def changelog(self) -> str:
        return f"{self.group}-counts-changelog"

    @property
    def client(self) -> ProcessorClient:
        return ProcessorClient(self.group, "0", self.settings.paths)

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until the condition is true; fail after ``PATIENCE_S`` seconds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for: {what}"
            time.sleep(0.05)

    def bring_up(self) -> None:
        self.do(Provision(self.group))
        self.do(Deploy(self.group))

    def do(self, request: Request) -> Applied:
        """Plan the request, confirm the plan, and apply it."""
        plan = self.verbs.plan(request)
        return self.verbs.apply(plan, confirmed=plan.hash)

    def do_although_killed(
        self,
        plan: Plan,
        tell: Callable[[str], None],
        broken_off: Callable[[tuple[str, ...]], None] = lambda done: None,
    ) -> Applied:
        """Apply a plan. Resume it after each kill or error until it is done.

        Args:
            plan: The plan to confirm and apply.
            tell: Gets each line of progress, and may raise ``Killed``.
            broken_off: Called after each kill or error with the kinds of the stages that are done.
        """
        record = None
        for _ in range(60):
            try:
                if record is None:
                    return self.verbs.apply(plan, confirmed=plan.hash, tell=tell)
                return self.verbs.resume(record.id, tell=tell)
            except (Killed, HoldfastError) as broken:
                print("broken off:", broken)
                record = self.verbs.begun(plan.request)
                assert record is not None
                broken_off(tuple(note.stage for note in record.done))
        raise AssertionError("it came to no end")

    def killed_while_paused(self, request: Request, stage: int) -> ApplyRecord:
        """Apply a plan, and kill the apply at the start of a stage, while the workers are paused.

        Returns the record of the unfinished apply.
        """
        plan = self.verbs.plan(request)

        def strike(text: str) -> None:
            if text.startswith(f"stage {stage} of"):
                raise Killed(text)

        with pytest.raises(Killed):
            self.verbs.apply(plan, confirmed=plan.hash, tell=strike)
        status = self.client.status()
        assert status is not None
        assert status.paused
        record = self.verbs.begun(request)
        assert record is not None
        return record

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """Start ``holdfast`` with these arguments. Its output and errors are in the process's ``stdout``."""
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast.orchestration.cli", *words],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": f"{PROJECT}:{os.environ['PYTHONPATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def feed(self, keys: int, each: int, topic: str | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.topics.bootstrap})
        for _ in range(each):
            for number in range(keys):
                producer.produce(topic or f"{self.group}-in", b"1", f"key-{number}".encode())
        assert producer.flush(30) == 0

    def processed(self, records: int) -> None:
        """Wait until the group has committed at least this number of records."""

        def committed() -> bool:
            return sum(self.topics.committed_offsets(self.group).values()) >= records

        self.wait_for(committed, f"{records} records committed")

    def logged(self) -> dict[str, int]:
        """Return the count of each key, from a compacted copy of the changelog."""
        found: dict[str, int] = {}
        for number, end in self.topics.settled_end_offsets(self.changelog).items():
            start = self.topics.start_offsets(self.changelog)[number]
            records = read_range(self.topics.bootstrap, self.changelog, number, start, end)
            for key, value in fold_changelog(records).items():
                assert key != META_KEY
                found[split_key(key)[0].decode()] = decode_value(value)
        return found


@pytest.fixture
def operated(
    broker: str,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Operated]:
    group = unique("operated")
    module = f"definition_{group.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(DEFINITION.format(group=group))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", broker)
    monkeypatch.setenv("HOLDFAST_PROCESSORS", f'["{module}:application"]')
    settings = load_settings()
    topics = Topics(broker)
    for name in ("in", *(["second"] if os.environ.get(SECOND_STREAM) else [])):
        topics.create(TopicSpec(f"{group}-{name}", PARTITIONS, 1))
    with open_verbs(settings, who="a test") as verbs:
        yield Operated(group, settings, verbs, topics)
    if settings.paths.supervisor.is_dir():
        Supervisord(settings.paths).stop()
    sys.modules.pop(module, None)
