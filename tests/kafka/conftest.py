"""Fixtures that run a counting application on a real broker, feed its input and read its output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast import Application
from holdfast.infra.kafka.records import Record, TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.paths import Paths
from holdfast.orchestration import verbs
from holdfast.processors.engine import provisioning
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.engine.state.folder import StateFolder
from tests.kafka.object_store import S3Server
from tests.parts.operated import mortal_holder

PROJECT = Path(__file__).resolve().parent.parent.parent
#: Timeout in seconds for steps that take seconds on a quiet machine.
PATIENCE_S = 120.0
#: Session timeout of the consumer group, in seconds. After each kill, a test waits this long until the group removes
#: the worker.
SESSION_MS = 3_000


@pytest.fixture(autouse=True)
def killed_holders_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the process that holds an apply (an operator's running command) look dead after a simulated kill.

    Tests simulate the kill inside their own process, which stays alive.
    """
    monkeypatch.setattr(verbs, "this_process", mortal_holder)


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Wait until ``condition`` returns a true value, and return that value."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {PATIENCE_S:g} s for: {what}")


class PageReader(ProcessorClient):
    """A client that also reads the worker's probe pages and its Prometheus page."""

    def healthy(self, timeout_s: float = 2.0) -> bool:
        """Whether the worker answers ``/health``, which means that its loop is alive."""
        answer = self._get("/health", timeout_s)
        return answer is not None and answer.is_success

    def ready(self, timeout_s: float = 2.0) -> tuple[bool, str]:
        """Whether the worker is ready (``/ready``), and the reason if it is not."""
        answer = self._get("/ready", timeout_s)
        if answer is None:
            return False, "it doesn't answer"
        try:
            return answer.is_success, str(answer.json().get("reason", ""))
        except (ValueError, AttributeError):
            return False, f"it answered {answer.status_code}"

    def metrics(self, timeout_s: float = 2.0) -> str | None:
        """The worker's ``/metrics`` in Prometheus' text format; None when the worker does not answer."""
        answer = self._get("/metrics", timeout_s)
        return answer.text if answer is not None and answer.is_success else None


@dataclass
class Stream:
    """A counting application with its topics and state folder, and helpers that feed and read it."""

    bootstrap: str
    group: str
    state_dir: Path
    options: dict[str, Any] = field(default_factory=dict)
    partitions: int = 2

    @property
    def source(self) -> str:
        return f"{self.group}-in"

    @property
    def sink(self) -> str:
        return f"{self.group}-out"

    @property
    def dead_letters(self) -> str:
        return f"{self.group}-dead"

    @cached_property
    def topics(self) -> Topics:
        return Topics(self.bootstrap)

    def create_source(self) -> None:
        self.topics.create(TopicSpec(self.source, self.partitions, 1))

    def provision(self) -> None:
        """Create the topics that the application needs, including its changelog."""
        topology = self.application().topology()
        provisioning.apply(provisioning.plan(topology, provisioning.read_facts(self.topics, topology)), self.topics)

    def feed(self, messages: list[tuple[bytes | None, bytes | None]]) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        for key, value in messages:
            producer.produce(self.source, value, key)
        assert producer.flush(60) == 0

    def feed_numbers(self, count: int, keys: int = 10) -> None:
        self.feed([(b"k%d" % (number % keys), json.dumps(number).encode()) for number in range(count)])

    def folder_id(self, slot: str) -> str:
        """The id of the state folder of a slot (a worker's place). The folder is created if it does not exist."""
        file = self.state_dir / self.group / slot / "id"
        if not file.exists():
            StateFolder(self.state_dir, self.group, slot).release()
        return file.read_text().strip()

    def application(self, step: Callable[..., Any] | None = None, **options: Any) -> Application:
        app = Application(
            self.bootstrap,
            consumer_group=self.group,
            state_dir=self.state_dir,
            **{
                "auto_offset_reset": "earliest",
                "commit_interval": 0.2,
                "consumer_extra_config": {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": SESSION_MS // 4},
                "loglevel": None,
                "broker_availability_timeout": 60,
                **self.options,
                **options,
            },
        )
        frame = app.dataframe(app.topic(self.source)).apply(step or count, stateful=True, store="counts")
        frame.to_topic(app.topic(self.sink))
        return app

    def delete_local_state(self) -> None:
        """Delete the local state, as if the disk were new. The next start restores state from the changelog."""
        shutil.rmtree(self.state_dir / self.group)

    def read(self, topic: str) -> list[Record]:
        return [
            record
            for number, end in sorted(self.topics.settled_end_offsets(topic, PATIENCE_S).items())
            for record in read_range(self.bootstrap, topic, number, 0, end)
        ]

    def changelog_state(self) -> dict[tuple[bytes, str], Any]:
        state: dict[tuple[bytes, str], Any] = {}
        for record in self.read(f"{self.group}-counts-changelog"):
            if record.key == META_KEY:
                continue
            place = split_key(record.key or b"")
            if record.value is None:
                state.pop(place, None)
            else:
                state[place] = decode_value(record.value)
        return state

    def counts(self) -> dict[bytes, int]:
        """The count of each key, read from the committed changelog."""
        return {key: value for (key, name), value in self.changelog_state().items() if name == "n"}

    def outputs_are_exact(self, expected: dict[bytes, int]) -> None:
        """Assert that the outputs of each key are 1..n in order, without gaps or duplicates."""
        seen: dict[bytes, list[int]] = {}
        for record in self.read(self.sink):
            seen.setdefault(record.key or b"", []).append(json.loads(record.value or b"0"))
        assert seen == {key: list(range(1, total + 1)) for key, total in expected.items()}


def count(value: Any, state: Any) -> int:
    """Count a message of a key. Returns the key's new count."""
    total = state.get("n", 0) + 1
    state.set("n", total)
    return int(total)


@pytest.fixture
def stream(broker: str, unique: Callable[[str], str], tmp_path: Path) -> Stream:
    made = Stream(broker, unique("count"), tmp_path / "state")
    made.create_source()
    return made


DEFINITION = (
    f"""
import os
from holdfast import Application

session_ms = int(os.environ.get("TEST_SESSION_MS", "{SESSION_MS}"))
"""
    + """
application = Application(
    os.environ["TEST_BOOTSTRAP"], consumer_group=os.environ["TEST_GROUP"], auto_offset_reset="earliest",
    commit_interval=float(os.environ.get("TEST_INTERVAL", "0.2")),
    consumer_extra_config={"session.timeout.ms": session_ms, "heartbeat.interval.ms": session_ms // 4},
    broker_availability_timeout=float(os.environ.get("TEST_BROKER_TIMEOUT", "60")),
    processing_guarantee=os.environ.get("TEST_GUARANTEE", "exactly-once"),
    producer_extra_config={"transaction.timeout.ms": int(os.environ.get("TEST_TRANSACTION_MS", "15000"))},
)

def count(value, state):
    total = state.get("n", 0) + 1
    state.set("n", total)
    return total

frame = application.dataframe(application.topic(application.consumer_group + "-in"))
frame = frame.apply(count, stateful=True, store="counts")
frame.to_topic(application.topic(application.consumer_group + "-out"))
"""
)


class Worker:
    """The counting application as a separate worker process."""

    def __init__(self, stream: Stream, home: Path, slot: str = "0", limit_file_bytes: int | None = None) -> None:
        self.stream, self.slot, self.paths = stream, slot, Paths(home)
        home.mkdir(parents=True, exist_ok=True)
        (home / "counting_definition.py").write_text(DEFINITION)
        self.log = home / f"worker-{slot}.log"
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{PROJECT}{os.pathsep}{home}",
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_PROCESSORS": '["counting_definition:application"]',
            "TEST_BOOTSTRAP": stream.bootstrap,
            "TEST_GROUP": stream.group,
        }
        self._limit = limit_file_bytes
        #: Additional command line arguments for the worker process.
        self.flags: tuple[str, ...] = ()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Worker:
        command = [
            sys.executable,
            "-m",
            "holdfast.processors",
            "--processor",
            self.stream.group,
            "--slot",
            self.slot,
            *self.flags,
        ]
        if self._limit is not None:
            limited = (
                "import resource,os,sys;resource.setrlimit(resource.RLIMIT_FSIZE,(int(sys.argv[1]),)*2);"
                "os.execv(sys.argv[2],sys.argv[2:])"
            )
            command = [sys.executable, "-c", limited, str(self._limit), *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd=self.paths.home)
        return self

    @property
    def client(self) -> PageReader:
        return PageReader(self.stream.group, self.slot, self.paths)

    def wait_running(self) -> Worker:
        wait_for(self._running, f"worker {self.slot} to run; its log ends: {self.tail()}")
        return self

    def _running(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"worker ended with {self.process.returncode}: {self.tail()}"
        status = self.client.status()
        return status is not None and status.pid == self.process.pid and status.phase == "running"

    def waiting(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until ``condition`` returns a true value. If the worker exits first, fail and show its log."""

        def ended_or_true() -> Any:
            assert self.process is not None
            code = self.process.poll()
            assert code is None, f"worker {self.slot} ended with {code} before {what}"
            return condition()

        try:
            return wait_for(ended_or_true, what)
        except AssertionError as failed:
            raise AssertionError(f"{failed}\nThe log of worker {self.slot} ends: {self.tail()}") from failed

    def tail(self) -> str:
        return self.log.read_text()[-3000:] if self.log.exists() else ""

    def lose_state(self) -> None:
        """Delete the local state of this worker's slot, as if its disk were new. The worker must have ended."""
        folder = self.paths.state / self.stream.group / self.slot
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def terminate(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(60)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def worker(stream: Stream, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """A factory of worker processes for ``stream``; the fixture kills all of them at the end of the test."""
    made: list[Worker] = []
    stream.provision()

    def make(slot: str = "0", home: str = "home", **options: Any) -> Worker:
        made.append(Worker(stream, tmp_path / home, slot, **options))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.kill()


@pytest.fixture
def waiting() -> Callable[[Callable[[], Any], str], Any]:
    return wait_for


@pytest.fixture
def worker_class() -> type[Worker]:
    return Worker


@pytest.fixture
def stream_class() -> type[Stream]:
    return Stream


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server.start()
    server.stop()
