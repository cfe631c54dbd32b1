"""A real Apache Kafka broker for laptops, demo and tests: one KRaft node, started from locked jars, loopback only.

A folder is a broker: its data, configuration, log and address file lie there, and nowhere else.

Invariants:
    - At most one broker runs on a folder.
    - Ready means that a metadata request was answered.
    - The broker belongs to no terminal and to no parent: it outlives whoever started it, until it is stopped.
    - Started again on its folder it has its data, and its old port if that is still free.
    - Records are kept until their topic's own retention says otherwise: event times may lie years back.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from holdfast.infra.jars import JarSource, fetch_jars
from holdfast.infra.java import BRIEF, Java, find_java
from holdfast.infra.kafka.broker_errors import BrokerAlreadyRunning, BrokerDidNotStart, PortTaken
from holdfast.infra.kafka.readiness import answers_metadata, port_is_open
from holdfast.infra.kafka.unclean_end import ended_uncleanly, expire_registration
from holdfast.infra.process import end_process, is_running, start_mark
from holdfast.infra.settings import Settings

_LOG_CONFIGURATION = Path(__file__).resolve().parent / "broker_log4j2.properties"
_LOOK_EVERY_S = 0.05
_PORT_FREE_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A running broker: where clients reach it, and its process."""

    bootstrap: str
    pid: int
    #: Tells this process from a later one with the same id.
    mark: str

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return int(self.bootstrap.rpartition(":")[2])


class EmbeddedBroker:
    """The broker of one folder.

    Args:
        folder: Holds all that the broker writes; made when absent.
        port: The clients' port; None takes the folder's last one if it is free, else any free one.
        heap_mb: Heap bound, MiB.
        java: The Java that runs it.
        jars: Its class path.
        options: Further options of its JVM.
    """

    #: Whether its controller decides alone. One of several must never run by itself on its copy of the metadata.
    _decides_alone: ClassVar[bool] = True

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        heap_mb: int = 512,
        java: Java,
        jars: Sequence[Path],
        options: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._port = port
        self._heap_mb = heap_mb
        self._java = java
        self._options = tuple(options)
        self._class_path = os.pathsep.join(str(jar) for jar in jars)

    @property
    def log(self) -> Path:
        """The broker's own log file."""
        return self._folder / "broker.log"

    def running(self) -> BrokerAddress | None:
        """The broker of this folder, if it runs."""
        return running_broker(self._folder)

    def start(self, timeout_s: float = 120.0) -> BrokerAddress:
        """Start the broker and wait until it answers.

        Raises:
            BrokerAlreadyRunning: One runs on this folder.
            PortTaken: The configured port is in use.
            BrokerDidNotStart: It ended, or did not answer in time; it was killed and its last words are in the error.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with _one_starter(self._folder):
            there = self.running()
            if there is not None:
                raise BrokerAlreadyRunning(self._folder, there.pid, there.bootstrap)
            deadline = time.monotonic() + timeout_s
            port = self._choose_port()
            self._configure(port, _free_port(), deadline)
            if self._decides_alone and ended_uncleanly(self._folder / "data"):
                expire_registration(self._folder / "data", self._java_command(BRIEF), _free_port(), self.log, deadline)
            process = self._launch()
            mark = start_mark(process.pid) or ""
            address = BrokerAddress(f"127.0.0.1:{port}", process.pid, mark)
            try:
                self._await_answer(process, address, deadline, timeout_s)
            except BaseException:
                end_process(process.pid, mark, timeout_s=0.0)
                raise
            _write_address(self._folder, address)
            # From here on it is known by its address file only; nobody waits for it as for a child.
            process.returncode = 0
            return address

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the broker, by force when it does not end in time. Stopping what does not run is no error."""
        address = self.running()
        if address is not None:
            end_process(address.pid, address.mark, timeout_s=timeout_s)
        _address_file(self._folder).unlink(missing_ok=True)

    def _choose_port(self) -> int:
        if self._port is not None:
            if not _becomes_free(self._port):
                raise PortTaken(self._port)
            return self._port
        last = _last_port(self._folder)
        return last if last is not None and _becomes_free(last) else _free_port()

    def _configure(self, port: int, controller_port: int, deadline: float) -> None:
        properties = self._folder / "server.properties"
        fresh = properties.with_suffix(".fresh")
        fresh.write_text(_properties(self._folder / "data", port, controller_port, self._heap_mb))
        fresh.replace(properties)
        if (self._folder / "data" / "meta.properties").exists():
            return
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # A leading dash would be read as an option.
        cluster_id = "H" + cluster_id[1:]
        done = subprocess.run(
            [*self._java_command(BRIEF), "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=max(1.0, deadline - time.monotonic()),
            check=False,
        )
        if done.returncode != 0:
            said = " ".join((done.stdout + done.stderr).split())[-600:]
            raise BrokerDidNotStart(self._folder, f"its folder could not be formatted: {said}")

    def _java_command(self, *options: str) -> list[str]:
        return [
            str(self._java.executable),
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            *options,
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION}",
            f"-Dholdfast.broker.log={self.log}",
            "-cp",
            self._class_path,
        ]

    def _launch(self) -> subprocess.Popen[bytes]:
        with (self._folder / "broker.out").open("wb") as out:
            return subprocess.Popen(
                [*self._java_command(*self._options), "kafka.Kafka", str(self._folder / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
            )

    def _await_answer(
        self, process: subprocess.Popen[bytes], address: BrokerAddress, deadline: float, timeout_s: float
    ) -> None:
        while True:
            ended = process.poll()
            if ended is not None:
                said = self._last_words()
                if "Address already in use" in said:
                    raise PortTaken(address.port)
                raise BrokerDidNotStart(self._folder, f"it ended with exit code {ended}: {said}")
            if port_is_open(address.port) and answers_metadata(address.bootstrap):
                return
            if time.monotonic() >= deadline:
                raise BrokerDidNotStart(
                    self._folder, f"it did not answer within {timeout_s:.0f} s: {self._last_words()}"
                )
            time.sleep(_LOOK_EVERY_S)

    def _last_words(self) -> str:
        """The last errors of the log, and what the JVM itself printed."""
        words: list[str] = []
        for path in (self.log, self._folder / "broker.out"):
            lines = path.read_text(errors="replace").splitlines()[-200:] if path.exists() else []
            telling = [line for line in lines if re.search(r"ERROR|FATAL|Exception|Error", line)]
            words += telling[-4:] or lines[-2:]
        return " | ".join(words)[-1200:]


def running_broker(folder: Path) -> BrokerAddress | None:
    """The broker that runs on this folder, if one does."""
    try:
        address = BrokerAddress(**json.loads(_address_file(folder).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return address if is_running(address.pid, address.mark) else None


def embedded_broker(settings: Settings) -> EmbeddedBroker:
    """The embedded broker of this home, with the machine's Java and the locked jars.

    Raises:
        NoJava: There is no Java that could run it.
        JarUnavailable: Its jars are not here and could not be fetched.
    """
    java = find_java()
    return EmbeddedBroker(
        settings.paths.kafka,
        port=settings.kafka.embedded_port,
        heap_mb=settings.kafka.embedded_heap_mb,
        java=java,
        jars=fetch_jars("broker", settings.cache, JarSource(java, settings.ivy_settings)),
    )


def _properties(data: Path, port: int, controller_port: int, heap_mb: int) -> str:
    """The broker's configuration: one node, quick for few partitions, and nothing lost on a machine's short memory."""
    settings: dict[str, str | int] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "num.partitions": 4,
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "transaction.max.timeout.ms": 900_000,
        "group.initial.rebalance.delay.ms": 0,
        "log.retention.ms": -1,
        "log.cleaner.enable": "true",
        "log.cleaner.dedupe.buffer.size": min(128, max(8, heap_mb // 8)) * 2**20,
        "offsets.retention.minutes": 30 * 24 * 60,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _address_file(folder: Path) -> Path:
    return folder / "broker.json"


def _write_address(folder: Path, address: BrokerAddress) -> None:
    fresh = folder / "broker.json.fresh"
    fresh.write_text(json.dumps(asdict(address)))
    fresh.replace(_address_file(folder))


def _last_port(folder: Path) -> int | None:
    properties = folder / "server.properties"
    told = re.search(r"^advertised\.listeners=.*:(\d+)$", properties.read_text(), re.M) if properties.exists() else None
    return int(told[1]) if told else None


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # As the broker does: a port whose last connections are only winding down is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _becomes_free(port: int) -> bool:
    """Whether the port is free, or soon is: a broker that was just killed holds it for a moment more."""
    deadline = time.monotonic() + _PORT_FREE_WITHIN_S
    while not _can_bind(port):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _one_starter(folder: Path) -> Iterator[None]:
    """Starters of one folder follow each other, so that the second sees what the first one started."""
    with (folder / "start.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
