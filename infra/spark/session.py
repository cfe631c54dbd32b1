"""The Spark session of a process, for each kind of ``HOLDFAST_SPARK__MASTER``: a JVM here, a cluster, Spark Connect.

Invariants:
    - A JVM of this process listens on loopback only, unless ``HOLDFAST_SPARK__DRIVER_HOST`` says otherwise. It works in
      UTC, and writes below the home folder.
    - The JVM's ports obey only programs that know a secret (``guarded_ports``); its command line does not hold it.
    - The JVM ends with :func:`stop_spark` and with this process, also when the process is killed.
    - Spark downloads nothing while it runs: its jars are the locked ones.
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

#: How long the JVM may take to end before it is killed, seconds.
END_WITHIN_S = 20.0

#: Folder for the spilled data of this process's JVM.
_spill: Path | None = None
#: By this variable, pyspark's functions choose the kind of column.
_OVER_CONNECT = "SPARK_CONNECT_MODE_ENABLED"
#: Number of open Spark Connect sessions in this process, across threads: the variable is set while it is above 0.
_connections = 0
_counting = threading.Lock()


def spark_session(settings: Settings, *, app_name: str) -> SparkSession:
    """The Spark session of this process, ready to read and write the warehouse; Spark's pages show ``app_name``.

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
    # this logger prints a page of JSON for each failed query, which repeats the exception
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    with short_errors("start"):
        session = _connected(settings) if settings.spark.over_connect else _own(settings, app_name)
        for name, value in {**secret_configuration(settings), **_given(settings, late=True)}.items():
            session.conf.set(name, value)
    return session


def stop_spark(session: Any) -> None:
    """End a session, and the JVM if it belongs to this process; a Spark Connect server keeps running."""
    if is_remote(session):
        with suppress(Exception):  # an ended server has nothing to release
            session.stop()
        _count_connections(-1)
        return
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    with suppress(Exception):  # a killed JVM can't be asked to stop
        session.stop()
    if gateway is None or process is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends at the end of its input
    try:
        process.wait(END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_WITHIN_S)
    if _spill is not None:
        shutil.rmtree(_spill, ignore_errors=True)


def _own(settings: Settings, app_name: str) -> SparkSession:
    """A session in a JVM of this process, which runs queries locally or drives a cluster."""
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
    """Start the JVM of this process if it does not run; all properties come from files, none from the command line."""
    from pyspark import SparkContext

    with ExitStack() as started:
        properties = started.enter_context(private_properties(spill, "driver", configuration))
        words = shlex.join(["--properties-file", str(properties), "pyspark-shell"])
        started.enter_context(_environment(PYSPARK_SUBMIT_ARGS=words))
        SparkContext._ensure_initialized()


def _connected(settings: Settings) -> SparkSession:
    """A session of a Spark Connect server, which must have Iceberg."""
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
        # the retry policy is set before the first request
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
    """Properties of ``HOLDFAST_SPARK__CONF``; the catalog's properties may be secret and are set ``late``.

    ``connection_secret`` gives the secret of Spark's connections.
    """
    given = {name: value for name, value in settings.spark.conf.items() if name != AUTHENTICATE_SECRET}
    return {name: value for name, value in given.items() if name.startswith("spark.sql.catalog.") == late}


def _spill_folder(folder: Path) -> Path:
    """A folder for the spilled data of this process's JVM."""
    global _spill
    _spill = new_spill_folder(folder)
    return _spill


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables in the environment of this process for the JVM's launcher, and restore them afterwards."""
    environment = os.environ  # tidy: allow-environment because the JVM's launcher reads it
    before = {name: environment.get(name) for name in values}
    environment.update(values)
    try:
        yield
    finally:
        for name in values:
            environment.pop(name, None)
        environment.update({name: value for name, value in before.items() if value is not None})
