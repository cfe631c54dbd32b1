"""Starts and stops the embedded broker: one KRaft node of Apache Kafka on loopback, for laptops, the demo and tests.

``EmbeddedBroker.start`` starts the broker from the locked jars. Each broker has its own folder with data,
configuration, log and address file.

Invariants:
    - At most one broker runs on a folder.
    - A start returns after the broker has answered a metadata request.
    - The broker runs in a separate session (process group), so it outlives the process that started it.
    - A file names the broker's process from its first moment on. So a stop also ends a broker whose start was killed
      before the broker answered. A stop needs neither Java nor jars.
    - A restart on the same folder keeps the data, and also the port if the port is still free.
    - ``log.retention.ms`` is -1, so that only a topic's own retention deletes records. Otherwise the broker would
      delete records whose event times are years old.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import subprocess
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE
from holdfast.infra.kafka.embedded.unclean_end import as_properties, ended_uncleanly, expire_registration
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.settings import Settings
from holdfast.infra.setup.jars import JarSource, fetch_jars
from holdfast.infra.setup.java import BRIEF, Java, find_java
from holdfast.infra.system.files import locked, replace_text
from holdfast.infra.system.ports import can_bind, free_port, port_is_open
from holdfast.infra.system.process import (
    completed,
    end_process,
    identity_beside,
    record_identity,
    recorded_runs,
    start_detached,
    start_mark,
)
from holdfast.infra.waiting import Deadline, wait_until

_LOG_CONFIGURATION = Path(__file__).resolve().parent / "broker_log4j2.properties"
#: Maximum seconds from the start of the broker to its first answer.
START_WITHIN_S = 120.0
#: Maximum seconds that the broker may take to end after SIGTERM before it is killed.
STOP_WITHIN_S = 30.0
_SILENT = logging.getLogger("holdfast.kafka.readiness")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
#: Maximum seconds to wait for a port that a killed broker may still hold.
PORT_FREE_WITHIN_S = 2.0


class BrokerAlreadyRunning(KafkaFailed):
    """A broker already runs on this folder; a second broker would destroy the data."""

    exit_code = EXIT_BAD_CONFIGURATION

    def __init__(self, folder: Path, pid: int, bootstrap: str) -> None:
        super().__init__(
            f"A broker already runs on {folder}: process {pid}, address {bootstrap}.",
            action="Use that broker, or stop it with `holdfast down`.",
            folder=str(folder),
            pid=pid,
            bootstrap=bootstrap,
        )


class PortTaken(KafkaFailed):
    """The configured port of the embedded broker is in use."""

    exit_code = EXIT_BAD_CONFIGURATION

    def __init__(self, port: int) -> None:
        super().__init__(
            f"Port {port} on 127.0.0.1 is in use by another program; the embedded broker needs this port.",
            action="Stop that program, or set `HOLDFAST_KAFKA__EMBEDDED_PORT` to a free port, or unset the variable.",
            port=port,
        )


class BrokerDidNotStart(KafkaFailed):
    """The embedded broker ended during its start, or did not answer in time."""

    exit_code = EXIT_BROKER_UNAVAILABLE

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(
            f"The embedded broker of {folder} did not start: {reason}",
            action=f"Read `{folder / 'broker.log'}` and `broker.out` beside it, mend the cause, run `holdfast up`.",
            folder=str(folder),
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The bootstrap address and the process of a running embedded broker."""

    bootstrap: str
    pid: int
    #: The kernel's start time of the process, as text; it distinguishes the process from a later one with the same id.
    mark: str

    @property
    def port(self) -> int:
        """The port to which clients connect."""
        return int(self.bootstrap.rpartition(":")[2])


class EmbeddedBroker:
    """The embedded broker of one folder, which has all files of the broker and is created if absent.

    With ``port=None``, the broker uses the port of its last start if this port is free, otherwise any free port.
    ``heap_mb`` is the maximum heap of the broker's JVM, MiB.
    """

    #: Whether this node is the cluster's only controller. If False, ``expire_registration`` is skipped, because one of
    #: several controllers must never run alone on its metadata.
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
        """The broker's log file."""
        return self._folder / "broker.log"

    def running(self) -> BrokerAddress | None:
        """Address and process of this folder's running broker; None if it does not run."""
        return running_broker(self._folder)

    def start(self, timeout_s: float = START_WITHIN_S) -> BrokerAddress:
        """Start the broker, and return when it answers.

        Raises:
            BrokerAlreadyRunning: A broker runs on this folder.
            PortTaken: The configured port is in use.
            BrokerDidNotStart: The broker ended, or was killed because it did not answer in time. The error has its last
                log lines.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        # If two processes start the broker, the second process waits, and then finds the running broker.
        with locked(self._folder / "start.lock"):
            there = self.running()
            if there is not None:
                raise BrokerAlreadyRunning(self._folder, there.pid, there.bootstrap)
            # An earlier start may have been killed before its broker answered. Such a broker may still run, so end it.
            _end_recorded(_starting_file(self._folder), timeout_s=0.0)
            deadline = Deadline(timeout_s)
            port = self._choose_port()
            self._configure(port, free_port(), deadline)
            if self._decides_alone and ended_uncleanly(self._folder / "data"):
                expire_registration(self._folder / "data", self._java_command(BRIEF), free_port(), self.log, deadline)
            command = [*self._java_command(*self._options), "kafka.Kafka", str(self._folder / "server.properties")]
            process = start_detached(command, self._folder, self._folder / "broker.out")
            mark = start_mark(process.pid) or ""
            address = BrokerAddress(f"127.0.0.1:{port}", process.pid, mark)
            try:
                _record(_starting_file(self._folder), address)
                self._await_answer(process, address, deadline, timeout_s)
            except BaseException:
                end_process(process.pid, mark, timeout_s=0.0)
                _forget(_starting_file(self._folder))
                raise
            _record(_address_file(self._folder), address)
            _forget(_starting_file(self._folder))
            # The broker keeps running after this process ends, and the address file identifies it. Popen gets a return
            # code, because otherwise it would warn that the broker still runs.
            process.returncode = 0
            return address

    def find_or_start(self) -> BrokerAddress:
        """The running broker of this folder; starts the broker if needed. Two processes may call it at once.

        Raises:
            PortTaken: The configured port is in use.
            BrokerDidNotStart: The broker ended, or did not answer in time.
        """
        try:
            return self.running() or self.start()
        except BrokerAlreadyRunning:
            there = self.running()
            if there is None:  # Another process has started a broker, but that broker has already ended.
                raise
            return there

    def stop(self, timeout_s: float = STOP_WITHIN_S) -> None:
        """Stop the broker by SIGTERM; kill it after ``timeout_s`` seconds. Does nothing if no broker runs."""
        stop_broker(self._folder, timeout_s)

    def _choose_port(self) -> int:
        if self._port is not None:
            if not _becomes_free(self._port):
                raise PortTaken(self._port)
            return self._port
        last = _last_port(self._folder)
        return last if last is not None and _becomes_free(last) else free_port()

    def _configure(self, port: int, controller_port: int, deadline: Deadline) -> None:
        properties = self._folder / "server.properties"
        replace_text(properties, _properties(self._folder / "data", port, controller_port, self._heap_mb))
        if (self._folder / "data" / "meta.properties").exists():
            return
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # The id's first character is replaced, because Kafka's tool would treat an id with a leading dash as an option.
        cluster_id = "H" + cluster_id[1:]
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)]
        done = completed([*self._java_command(BRIEF), *tool], max(1.0, deadline.left_s))
        if done.returncode != 0:
            output = " ".join((done.stdout + done.stderr).split())[-600:]
            raise BrokerDidNotStart(self._folder, f"Kafka could not format its data folder: {output}")

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

    def _await_answer(
        self, process: subprocess.Popen[bytes], address: BrokerAddress, deadline: Deadline, timeout_s: float
    ) -> None:
        def answers() -> bool:
            ended = process.poll()
            if ended is not None:
                words = self._last_words()
                if "Address already in use" in words:
                    raise PortTaken(address.port)
                raise BrokerDidNotStart(self._folder, f"it ended with exit code {ended}: {words}")
            return port_is_open(address.port) and answers_metadata(address.bootstrap)

        if not wait_until(answers, deadline):
            raise BrokerDidNotStart(self._folder, f"it did not answer within {timeout_s:.0f} s: {self._last_words()}")

    def _last_words(self) -> str:
        """The last error lines in the broker's log and in the output of its JVM, for an error message."""
        words: list[str] = []
        for path in (self.log, self._folder / "broker.out"):
            lines = path.read_text(errors="replace").splitlines()[-200:] if path.exists() else []
            errors = [line for line in lines if re.search(r"ERROR|FATAL|Exception|Error", line)]
            words += errors[-4:] or lines[-2:]
        return " | ".join(words)[-1200:]


def answers_metadata(bootstrap: str, *, timeout_s: float = 5.0) -> bool:
    """Whether a broker answers a metadata request and knows a controller. An open port alone is not enough."""
    # Imported late, because the Kafka client takes 30 ms of CPU. `holdfast status` only looks whether a broker process
    # runs, and does not need the client.
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": bootstrap, "socket.connection.setup.timeout.ms": 2000}, logger=_SILENT)
    with suppress(KafkaException):
        metadata = client.list_topics(timeout=timeout_s)
        return bool(metadata.brokers) and metadata.controller_id >= 0
    return False


def running_broker(folder: Path) -> BrokerAddress | None:
    """Address and process id of the broker that runs on this folder; None if no broker runs."""
    return _recorded(_address_file(folder))


def stop_broker(folder: Path, timeout_s: float = STOP_WITHIN_S) -> bool:
    """Stop the broker of this folder by SIGTERM, and kill it after ``timeout_s`` seconds; returns whether one ran.

    A broker that does not answer yet is stopped, too, even if the process that started it was killed.
    """
    ended = [_end_recorded(file(folder), timeout_s) for file in (_address_file, _starting_file)]
    return any(ended)


def embedded_broker(settings: Settings) -> EmbeddedBroker:
    """The embedded broker of the settings' home folder, with this machine's Java and the locked jars.

    Raises:
        NoJava: No Java on this machine can run the broker.
        JarUnavailable: The broker's jars are not in the cache and could not be fetched.
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
    """The text of ``server.properties``: one node, few internal partitions, and limited memory for the log cleaner."""
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
    return as_properties(settings)


def _address_file(folder: Path) -> Path:
    return folder / "broker.json"


def _starting_file(folder: Path) -> Path:
    """The file with the address of a broker that was started, and has not answered yet."""
    return folder / "broker-starting.json"


def _record(file: Path, address: BrokerAddress) -> None:
    record_identity(file, address.pid)
    replace_text(file, json.dumps(asdict(address)))


def _recorded(file: Path) -> BrokerAddress | None:
    """The broker address in a file; None if the file is absent or unreadable, or if its process has ended."""
    try:
        address = BrokerAddress(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return address if recorded_runs(file, address.pid, address.mark) else None


def _forget(file: Path) -> None:
    file.unlink(missing_ok=True)
    identity_beside(file).unlink(missing_ok=True)


def _end_recorded(file: Path, timeout_s: float) -> bool:
    """End the process that a file names, and delete the file; returns whether the process ran."""
    address = _recorded(file)
    if address is not None:
        end_process(address.pid, address.mark, timeout_s=timeout_s)
    _forget(file)
    return address is not None


def _last_port(folder: Path) -> int | None:
    properties = folder / "server.properties"
    last = re.search(r"^advertised\.listeners=.*:(\d+)$", properties.read_text(), re.M) if properties.exists() else None
    return int(last[1]) if last else None


def _becomes_free(port: int) -> bool:
    """Whether the port is or becomes free within ``PORT_FREE_WITHIN_S``, because a killed broker may still hold it."""
    return wait_until(lambda: can_bind(port), PORT_FREE_WITHIN_S)
