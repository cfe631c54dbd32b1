"""Opens the Spark session of a process, for each kind of ``HOLDFAST_SPARK__MASTER``: local, cluster, Spark Connect.

Invariants:
    - A JVM of this process listens only on loopback, unless ``HOLDFAST_SPARK__DRIVER_HOST`` is another address. It uses
      UTC, and writes only to the home folder.
    - The JVM's ports accept only programs that know a secret (``guarded_ports``). Its command line does not contain
      the secret.
    - The JVM ends with :func:`stop_spark`, and with this process, even if this process is killed.
    - Spark downloads nothing while it runs, because it uses the locked jars.
    - Over Spark Connect, this process starts no JVM.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.infra.settings import WARM, Settings
from holdfast.infra.settings.groups import AUTHENTICATE_SECRET
from holdfast.infra.setup.java import find_java, spark_java_home
from holdfast.infra.spark.configuration import (
    EXTENSIONS,
    connection_secret,
    jvm_configuration,
    python_path,
    secret_configuration,
    session_configuration,
    spark_class_data,
    spark_jars,
    worker_python,
)
from holdfast.infra.spark.failures import SparkFailed, SparkUnavailable, short_errors
from holdfast.infra.spark.private_files import private_properties
from holdfast.infra.spark.progress import is_remote
from holdfast.infra.spark.server import running_server
from holdfast.infra.spark.spills import new_spill_folder
from holdfast.infra.system.privacy import private_files
from holdfast.infra.warehouse.catalog import prepare_catalog
from holdfast.infra.warehouse.properties import CATALOG

__all__ = ["CATALOG", "SparkFailed", "short_errors", "spark_session", "stop_spark"]

#: Maximum seconds that the JVM may take to end before it is killed.
END_WITHIN_S = 20.0

#: Folder for the spilled data of this process's JVM.
_spill: Path | None = None
#: Environment variable that tells pyspark's functions to create columns for Spark Connect.
_OVER_CONNECT = "SPARK_CONNECT_MODE_ENABLED"
#: Number of open Spark Connect sessions in this process, over all threads. While it is above 0, the environment
#: variable ``_OVER_CONNECT`` is set.
_connections = 0
_counting = threading.Lock()


def spark_session(settings: Settings, *, app_name: str) -> SparkSession:
    """A Spark session of this process, ready to read and write the warehouse; ``app_name`` is its name in Spark.

    Raises:
        NoJava: No Java on this machine can run Spark.
        JarUnavailable: A jar is not in the cache and could not be fetched.
        CatalogUnavailable, CatalogUnusable, CatalogLost, StorageUnavailable: The warehouse can't be used.
        SparkUnavailable: The Connect server or the cluster can't be reached.
    """
    with private_files(settings):
        return _open(settings, app_name)


def _open(settings: Settings, app_name: str) -> SparkSession:
    prepare_catalog(settings)
    # For each failed query, pyspark's logger prints a page of JSON that only repeats the exception. Silence the logger.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    with short_errors("start"):
        session = _connected(settings) if settings.spark.over_connect else _own(settings, app_name)
        for name, value in {**secret_configuration(settings), **_given(settings, late=True)}.items():
            session.conf.set(name, value)
    return session


def stop_spark(session: Any) -> None:
    """End a session, and this process's JVM if it has one; a Spark Connect server keeps running."""
    if is_remote(session):
        with suppress(Exception):  # `stop` fails if the server has already ended.
            session.stop()
        _count_connections(-1)
        return
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    with suppress(Exception):  # `stop` fails if the JVM was killed.
        session.stop()
    if gateway is None or process is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if process.stdin is not None:
        process.stdin.close()  # The JVM ends when its standard input is closed.
    try:
        process.wait(END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_WITHIN_S)
    if _spill is not None:
        shutil.rmtree(_spill, ignore_errors=True)


def _own(settings: Settings, app_name: str) -> SparkSession:
    """A session in a JVM of this process. The JVM executes the queries itself, or is the driver of a cluster."""
    java = find_java()
    spill = _spill_folder(settings.paths.spark)
    jars = spark_jars(settings, java)
    archive = spark_class_data(settings, java, jars)
    configuration = {
        **jvm_configuration(settings, jars, spill, archive.options() if archive is not None else ()),
        **_given(settings, late=False),
        **connection_secret(settings),
    }
    with _environment(
        JAVA_HOME=str(spark_java_home(java, settings.cache)),
        SPARK_LOCAL_IP=settings.spark.driver_host,
        PYTHONPATH=python_path(),
        PYSPARK_PYTHON=worker_python(settings),
    ):
        _start_jvm(spill, {**configuration, "spark.master": settings.spark.master})
        builder = SparkSession.builder.appName(app_name).master(settings.spark.master)
        for name, value in configuration.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()


def _start_jvm(spill: Path, configuration: dict[str, str]) -> None:
    """Start the JVM of this process if it does not run. Its properties are in private files, not in its arguments."""
    from pyspark import SparkContext

    with ExitStack() as started:
        properties = started.enter_context(private_properties(spill, "driver", configuration))
        words = shlex.join(["--properties-file", str(properties), "pyspark-shell"])
        started.enter_context(_environment(PYSPARK_SUBMIT_ARGS=words))
        SparkContext._ensure_initialized()


def _connected(settings: Settings) -> SparkSession:
    """A session on a Spark Connect server; raises SparkUnavailable if the server lacks Iceberg."""
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    from holdfast.infra.spark.connect_patience import PatientOnce

    url, token = settings.spark.master, settings.spark.token
    if url == WARM:
        server = running_server(settings)
        url, token = server.url, server.token
    channel = DefaultChannelBuilder(url)
    if token is not None:
        channel.set("token", token)
    _count_connections(+1)
    try:
        # The retry policy is set at once, because it must be set before the session's first request.
        session: Any = RemoteSession.builder.channelBuilder(channel).create()
        session.client.set_retry_policies([PatientOnce()])
        for name, value in session_configuration(settings).items():
            session.conf.set(name, value)
        if EXTENSIONS not in str(session.conf.get("spark.sql.extensions", "")):
            raise SparkUnavailable(
                f"The Spark Connect server {url} lacks Iceberg: its `spark.sql.extensions` lack {EXTENSIONS}.",
                action="Start the server with the jars of set spark in `jars.lock` and with that extension; "
                "docs/warehouse-storage.md has the command.",
                url=url,
            )
    except BaseException:
        _count_connections(-1)
        raise
    return session  # type: ignore[no-any-return]


def _count_connections(change: int) -> None:
    global _connections
    with _counting:
        _connections = max(0, _connections + change)
        if _connections:
            os.environ[_OVER_CONNECT] = "1"
        else:
            os.environ.pop(_OVER_CONNECT, None)


def _given(settings: Settings, *, late: bool) -> dict[str, str]:
    """The properties in ``HOLDFAST_SPARK__CONF`` to set at the JVM's start or, if ``late``, after the session's start.

    The catalog's properties are set late, because they may be secrets. The secret of Spark's internal connections is
    left out; ``connection_secret`` returns it.
    """
    given = {name: value for name, value in settings.spark.conf.items() if name != AUTHENTICATE_SECRET}
    return {name: value for name, value in given.items() if name.startswith("spark.sql.catalog.") == late}


def _spill_folder(folder: Path) -> Path:
    """Create the folder for the spilled data of this process's JVM, and remember it in ``_spill``."""
    global _spill
    _spill = new_spill_folder(folder)
    return _spill


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Context manager that sets environment variables for the start of the JVM, and restores the former values."""
    environment = os.environ  # tidy: allow-environment because the JVM's launcher reads it
    before = {name: environment.get(name) for name in values}
    environment.update(values)
    try:
        yield
    finally:
        for name in values:
            environment.pop(name, None)
        environment.update({name: value for name, value in before.items() if value is not None})
