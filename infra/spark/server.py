"""The warm Spark: a Spark Connect server that stays up on this machine, so that runs need not start a JVM.

The file ``warm.json`` in the home folder has the server's process id, address and token.

Invariants:
    - The server listens only on loopback, and requires the token from its file, which only the owner can read.
    - The server outlives the process that started it. It is ended by process id, never by name.
    - The server's command line contains no secret.
    - Each home folder has at most one server. A lock serialises starts, and a second start finds the first server.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from holdfast.infra.masking import masked, remember
from holdfast.infra.settings import Settings
from holdfast.infra.setup.java import Java, find_java, spark_java_home
from holdfast.infra.spark.configuration import (
    jvm_configuration,
    python_path,
    spark_class_data,
    spark_jars,
    worker_python,
)
from holdfast.infra.spark.failures import SparkUnavailable
from holdfast.infra.spark.private_files import private_properties
from holdfast.infra.system.files import locked, package_folder, write_private
from holdfast.infra.system.ports import free_port, port_is_open
from holdfast.infra.system.process import (
    end_process,
    identity_beside,
    record_identity,
    recorded_runs,
    start_detached,
    start_mark,
)
from holdfast.infra.waiting import wait_until

#: Maximum seconds from the start of the server to its first answer.
START_WITHIN_S = 180.0
#: Maximum seconds that the server may take to end before it is killed.
STOP_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class SparkServer:
    """A running Spark Connect server: its process, URL and token.

    ``mark`` distinguishes its process from a later process with the same id (``infra.system.process``).
    """

    pid: int
    mark: str
    url: str
    token: str = field(repr=False)


def running_server(settings: Settings) -> SparkServer:
    """The Spark server of this home folder that stays up between runs (warm Spark).

    Raises:
        SparkUnavailable: No warm Spark runs.
    """
    found = find_server(settings)
    if found is None:
        raise SparkUnavailable(
            "`HOLDFAST_SPARK__MASTER` is warm, but no warm Spark runs on this machine.",
            action="Start it with `holdfast spark start`, or unset `HOLDFAST_SPARK__MASTER`: each run starts a Spark.",
        )
    return found


def find_server(settings: Settings) -> SparkServer | None:
    """The Spark server of this home folder that stays up between runs (warm Spark); None if it does not run."""
    try:
        found = SparkServer(**json.loads(_file(settings).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if recorded_runs(_file(settings), found.pid, found.mark) else None


def start_server(settings: Settings, class_options: Sequence[str] | None = None) -> SparkServer:
    """Start the warm Spark if it does not run; returns when the server answers.

    ``class_options`` replaces the JVM options with which the server uses its archive of classes.

    Raises:
        NoJava, JarUnavailable: Java or the jars are missing.
        SparkUnavailable: The server ended, or did not answer in time; the error has its last log lines.
    """
    settings.paths.spark.mkdir(parents=True, exist_ok=True)
    with locked(settings.paths.spark / "warm.lock"):
        return find_server(settings) or _start(settings, class_options)


def _start(settings: Settings, class_options: Sequence[str] | None) -> SparkServer:
    port, token = free_port(), secrets.token_urlsafe(24)
    remember((token,))
    java = find_java()
    jars = spark_jars(settings, java)
    if class_options is None:
        archive = spark_class_data(settings, java, jars)
        class_options = archive.options() if archive is not None else ()
    configuration = _configuration(settings, jars, port, token, class_options)
    with private_properties(settings.paths.spark, "warm", configuration) as properties:
        process, log = _launch(settings, java, properties)
        server = SparkServer(process.pid, start_mark(process.pid) or "", f"sc://localhost:{port}", token)
        wait_until(lambda: port_is_open(port) or process.poll() is not None, START_WITHIN_S)
    ended, answers = process.poll() is not None, port_is_open(port)
    if ended or not answers:
        end_process(server.pid, server.mark, timeout_s=STOP_WITHIN_S)
        words = masked(" | ".join(log.read_text(errors="replace").splitlines()[-5:]))[-1000:]
        fault = "ended" if ended else f"did not answer within {START_WITHIN_S:.0f} s"
        raise SparkUnavailable(
            f"The warm Spark {fault}. Its log ends: {words}",
            action=f"Mend the cause that `{log}` names last, then run `holdfast spark start`.",
            log=str(log),
        )
    # The server keeps running. Without a return code, Popen would warn that its process still runs.
    process.returncode = 0
    record_identity(_file(settings), server.pid)
    write_private(_file(settings), json.dumps(asdict(server)))
    return server


def stop_server(settings: Settings, within_s: float = STOP_WITHIN_S) -> bool:
    """Stop the warm Spark server; it is killed after ``within_s`` seconds. Returns False if it did not run."""
    there = find_server(settings)
    if there is not None and not end_process(there.pid, there.mark, timeout_s=within_s):
        # After the server was killed, its Python workers may still run in its process group.
        with suppress(ProcessLookupError):
            os.killpg(there.pid, signal.SIGKILL)
    _file(settings).unlink(missing_ok=True)
    identity_beside(_file(settings)).unlink(missing_ok=True)
    return there is not None


def _configuration(
    settings: Settings, jars: Sequence[Path], port: int, token: str, class_options: Sequence[str]
) -> dict[str, str]:
    """The properties of the server's JVM."""
    local = settings.paths.spark / "warm"
    local.mkdir(parents=True, exist_ok=True)
    # The catalog is left out, because each client sets it for its own session. Otherwise all sessions would share
    # one catalog.
    return {
        name: value
        for name, value in jvm_configuration(settings, jars, local, class_options).items()
        if not name.startswith("spark.sql.catalog.")
    } | {
        "spark.master": "local[*]",
        "spark.app.name": "holdfast-warm",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.authenticate.token": token,
        **settings.spark.conf,
    }


def _launch(settings: Settings, java: Java, properties: Path) -> tuple[subprocess.Popen[bytes], Path]:
    settings.paths.logs.mkdir(parents=True, exist_ok=True)
    pyspark = package_folder("pyspark")
    assert pyspark is not None, "fetched jars show that pyspark is installed"
    command = [str(pyspark / "bin" / "spark-submit"), "--properties-file", str(properties)]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = settings.paths.logs / "spark-warm.log"
    environment = _environment(settings, str(spark_java_home(java, settings.cache)))
    return start_detached(command, settings.paths.spark, log, environment), log


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


def _file(settings: Settings) -> Path:
    return settings.paths.spark / "warm.json"
