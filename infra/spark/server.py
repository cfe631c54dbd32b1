"""A Spark that stays warm: a Spark Connect server on this machine, known by its file below the home folder.

Invariants:
    - It listens on loopback only, and answers those only who have the token of its file, which its owner alone reads.
    - It outlives who starts it, and is ended by process id, never by name.
    - Its command line holds no secret.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from holdfast.infra.java import find_java, spark_java_home
from holdfast.infra.process import end_process, is_running, start_mark
from holdfast.infra.settings import Settings
from holdfast.infra.spark.configuration import jvm_configuration, python_path, spark_jars, worker_python
from holdfast.infra.spark.failures import SparkUnavailable

#: How long it may take to answer, in seconds.
START_WITHIN_S = 180.0
STOP_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class SparkServer:
    """A running server; ``mark`` tells its process from any other that had its id."""

    pid: int
    mark: str
    url: str
    token: str = field(repr=False)


def running_server(settings: Settings) -> SparkServer:
    """The warm Spark of this home.

    Raises:
        SparkUnavailable: None runs.
    """
    found = find_server(settings)
    if found is None:
        raise SparkUnavailable(
            "HOLDFAST_SPARK__MASTER is warm, and no warm Spark runs on this machine.",
            action="Start it with `holdfast spark start`, or unset HOLDFAST_SPARK__MASTER: each run starts its own.",
        )
    return found


def find_server(settings: Settings) -> SparkServer | None:
    """The warm Spark of this home, if it runs."""
    try:
        found = SparkServer(**json.loads(_file(settings).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if is_running(found.pid, found.mark) else None


def start_server(settings: Settings) -> SparkServer:
    """Start the warm Spark and wait until it answers; what runs is left as it is.

    Raises:
        NoJava, JarUnavailable: It could not be run.
        SparkUnavailable: It ended, or did not answer in time; with the end of its log.
    """
    there = find_server(settings)
    if there is not None:
        return there
    port, token = _free_port(), secrets.token_urlsafe(24)
    process, log = _launch(settings, port, token)
    server = SparkServer(process.pid, start_mark(process.pid) or "", f"sc://localhost:{port}", token)
    deadline = time.monotonic() + START_WITHIN_S
    while not _answers(port):
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            end_process(server.pid, server.mark, timeout_s=STOP_WITHIN_S)
            _properties(settings).unlink(missing_ok=True)
            words = " | ".join(log.read_text(errors="replace").splitlines()[-5:])[-1000:]
            raise SparkUnavailable(
                f"The warm Spark {'ended' if ended else 'did not answer in time'}. Its log ends: {words}",
                action=f"Read {log}; what it says last is the cause.",
                log=str(log),
            )
        time.sleep(_LOOK_EVERY_S)
    _properties(settings).unlink(missing_ok=True)
    process.returncode = 0  # known by its file only from here on; nobody waits for it as for a child
    _write_owned(_file(settings), json.dumps(asdict(server)))
    return server


def stop_server(settings: Settings) -> bool:
    """End the warm Spark; whether it ran."""
    there = find_server(settings)
    if there is not None and not end_process(there.pid, there.mark, timeout_s=STOP_WITHIN_S):
        with suppress(ProcessLookupError):  # its Python workers are in its session
            os.killpg(there.pid, signal.SIGKILL)
    _file(settings).unlink(missing_ok=True)
    return there is not None


def _launch(settings: Settings, port: int, token: str) -> tuple[subprocess.Popen[bytes], Path]:
    java = find_java()
    folder = settings.paths.spark
    local = folder / "warm"
    for one in (local, settings.paths.logs):
        one.mkdir(parents=True, exist_ok=True)
    # A client sets its catalog for its own session; a server that had one would share it with everybody.
    configuration = {
        name: value
        for name, value in jvm_configuration(settings, spark_jars(settings, java), local).items()
        if not name.startswith("spark.sql.catalog.")
    } | {
        "spark.master": "local[*]",
        "spark.app.name": "holdfast-warm",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.authenticate.token": token,
        **settings.spark.conf,
    }
    properties = _properties(settings)
    _write_owned(properties, "".join(f"{name} {_escaped(value)}\n" for name, value in configuration.items()))
    command = [str(_spark_home() / "bin" / "spark-submit"), "--properties-file", str(properties)]
    command += ["--driver-java-options", configuration["spark.driver.extraJavaOptions"]]
    command += ["--driver-memory", configuration["spark.driver.memory"]]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = settings.paths.logs / "spark-warm.log"
    log.write_bytes(b"")
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            env=_environment(settings, str(spark_java_home(java, settings.cache))),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process, log


def _environment(settings: Settings, java_home: str) -> Mapping[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return {
        **inherited,
        "JAVA_HOME": java_home,
        "SPARK_LOCAL_IP": settings.spark.driver_host,
        "PYTHONPATH": python_path(),
        "PYSPARK_PYTHON": worker_python(settings),
        "SPARK_NO_DAEMONIZE": "1",
    }


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _escaped(value: str) -> str:
    """A value as Java's properties files have it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _write_owned(path: Path, text: str) -> None:
    """Write a file that only its owner reads."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)


def _file(settings: Settings) -> Path:
    return settings.paths.spark / "warm.json"


def _properties(settings: Settings) -> Path:
    """What it is started with; gone once it is there."""
    return settings.paths.spark / "warm.properties"
