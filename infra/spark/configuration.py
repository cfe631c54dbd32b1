"""Derives Spark's properties from the settings. This module starts no process.

Invariants:
    - No command line contains a secret. Secrets are set in a running session, or written to a private file.
    - The properties of the catalog are set for a session, not for a server. So one server can serve several warehouses.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.infra.settings import IMPORT_ROOT, WARM, Settings, is_loopback
from holdfast.infra.settings.groups import AUTHENTICATE, AUTHENTICATE_SECRET
from holdfast.infra.setup.class_data import ClassData, class_data
from holdfast.infra.setup.jars import JarSource, fetch_jars
from holdfast.infra.setup.java import Java
from holdfast.infra.system.files import package_folder, replace_text
from holdfast.infra.system.privacy import process_umask
from holdfast.infra.warehouse.properties import CATALOG, spark_properties

#: Class of the Spark extension for MERGE, branches and tags. A Spark Connect server must be configured with it, too.
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = off
"""


def spark_jars(settings: Settings, java: Java) -> tuple[Path, ...]:
    """The paths of the locked jars that Spark needs with these settings; raises the errors of ``fetch_jars``."""
    source = JarSource(java, settings.ivy_settings)
    sets = ("spark", "s3") if settings.warehouse.on_s3 else ("spark",)
    return tuple(jar for name in sets for jar in fetch_jars(name, settings.cache, source))


def log_configuration(settings: Settings) -> Path:
    """Write the log4j configuration to the home folder; returns the path of the file."""
    folder = settings.paths.spark
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "log4j2.properties"
    replace_text(path, _LOG4J)
    return path


def spark_class_data(settings: Settings, java: Java, jars: Sequence[Path]) -> ClassData | None:
    """The archive of Spark's and Iceberg's classes; None without pyspark, or if jars can't be on the class path."""
    pyspark = package_folder("pyspark")
    if pyspark is None or not jars_on_class_path(settings):
        return None
    return class_data(settings.cache, "spark", java, (*jars, *sorted((pyspark / "jars").glob("*.jar"))))


def jars_on_class_path(settings: Settings) -> bool:
    """Whether the jars can be put on the driver's class path.

    True if Spark has no executors in other processes, and ``HOLDFAST_SPARK__CONF`` names no jars. If False, the jars
    are listed in `spark.jars`, which Spark copies and sends to executors. The class path is better, because Spark
    copies nothing, and Java can only archive classes from the class path.
    """
    conf = settings.spark.conf
    alone = settings.spark.master == WARM or re.match(r"local(\[|$)", settings.spark.master)
    return bool(alone) and "spark.driver.extraClassPath" not in conf and "spark.jars" not in conf


def _jar_properties(settings: Settings, jars: Sequence[Path]) -> dict[str, str]:
    if jars_on_class_path(settings):
        return {"spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars)}
    return {"spark.jars": ",".join(str(jar) for jar in jars)}


def jvm_configuration(
    settings: Settings, jars: Sequence[Path], local: Path, class_options: Sequence[str] = ()
) -> dict[str, str]:
    """The properties with which a Spark JVM is started.

    ``local`` is the folder for the JVM's spilled data; ``class_options`` are JVM options for the archive of classes.
    """
    folder = settings.paths.spark
    # The serial garbage collector uses one thread, and gives unused memory back. Spark and Iceberg load 23,000 classes;
    # with the default MetaspaceSize, Java would raise the limit four times, each time after a full collection.
    options = ["-XX:+UseSerialGC", "-XX:MetaspaceSize=192m"]
    options.append(f"-Dlog4j2.configurationFile=file:{log_configuration(settings)}")
    options.append(f"-Dderby.system.home={folder}")
    options += map(shlex.quote, class_options)
    return {
        **_jar_properties(settings, jars),
        "spark.driver.memory": f"{settings.spark.driver_memory_mb}m",
        "spark.driver.host": settings.spark.driver_host,
        "spark.driver.bindAddress": settings.spark.driver_host,
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.local.dir": str(local),
        # Maximum time until Python fetches a result. With the default of 15 s, a busy machine lost results.
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": worker_python(settings),
        "spark.executorEnv.PYTHONPATH": python_path(),
        "spark.sql.warehouse.dir": str(folder / "tables"),
        "spark.sql.extensions": EXTENSIONS,
        # The umask is a property, because Hadoop ignores the umask of the process.
        "spark.hadoop.fs.permissions.umask-mode": f"{process_umask():03o}",
        **guarded_ports(settings),
        **session_configuration(settings),
    }


def guarded_ports(settings: Settings) -> dict[str, str]:
    """The properties with which the ports of driver and executors refuse programs that lack the secret.

    On one machine, on YARN and on Kubernetes, Spark generates the secret itself. If the driver does not listen on
    loopback, connections are also encrypted.
    """
    beyond = {} if is_loopback(settings.spark.driver_host) else {"spark.network.crypto.enabled": "true"}
    return {AUTHENTICATE: "true", **beyond} if settings.spark.authenticates else {}


def connection_secret(settings: Settings) -> dict[str, str]:
    """The property with the secret of Spark's internal connections; empty if Spark generates the secret itself.

    This property must never be on a command line.
    """
    if not settings.spark.authenticates:
        return {}
    given = settings.spark.secret or settings.spark.conf.get(AUTHENTICATE_SECRET)
    if given is None and re.match(r"local-cluster\b", settings.spark.master):
        given = secrets.token_urlsafe(32)
    return {} if given is None else {AUTHENTICATE_SECRET: given}


def session_configuration(settings: Settings) -> dict[str, str]:
    """The properties of a session without secrets; they are the same for every kind of ``HOLDFAST_SPARK__MASTER``."""
    plain, _ = spark_properties(settings)
    catalog = f"spark.sql.catalog.{CATALOG}"
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.sources.v2.bucketing.enabled": "true",
        "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
        "spark.sql.requireAllClusterKeysForCoPartition": "false",
        "spark.sql.iceberg.planning.preserve-data-grouping": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{catalog}.{name}": value for name, value in plain.items()},
    }


def secret_configuration(settings: Settings) -> dict[str, str]:
    """The secret properties of a session, which are set after the session has started."""
    _, secret = spark_properties(settings)
    return {f"spark.sql.catalog.{CATALOG}.{name}": value for name, value in secret.items()}


def worker_python(settings: Settings) -> str:
    """The Python interpreter of Spark's workers: ``spark.pyspark.python`` in the settings, or this interpreter."""
    return settings.spark.conf.get("spark.pyspark.python", sys.executable)


def python_path() -> str:
    """``PYTHONPATH`` for Spark's Python workers on this machine, so that they can import Holdfast and its libraries."""
    places = [str(IMPORT_ROOT), *(place for place in sys.path if place and Path(place).is_dir())]
    return os.pathsep.join(dict.fromkeys(places))
