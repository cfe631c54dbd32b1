"""What Spark is told, from the settings; nothing here starts anything.

Invariants:
    - What a command line shows holds no secret; those go into the session after it is there, or into a file that
      only its owner reads.
    - The catalog's properties belong to a session, so that one server can serve several warehouses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.infra.jars import JarSource, fetch_jars
from holdfast.infra.java import Java
from holdfast.infra.settings import IMPORT_ROOT, Settings
from holdfast.infra.warehouse.properties import CATALOG, spark_properties

#: The class that makes Spark understand MERGE, branches and tags; a Connect server must have it, too.
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
    """The locked jars that the settings need, fetched if they are not here.

    Raises:
        JarUnavailable: Some could not be fetched.
        JarChecksumMismatch: One is not what the lock says.
    """
    source = JarSource(java, settings.ivy_settings)
    sets = ("spark", "s3") if settings.warehouse.on_s3 else ("spark",)
    return tuple(jar for name in sets for jar in fetch_jars(name, settings.cache, source))


def log_configuration(settings: Settings) -> Path:
    """Write log4j's file, below the home folder; its path."""
    folder = settings.paths.spark
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "log4j2.properties"
    if not path.exists() or path.read_text() != _LOG4J:
        fresh = folder / f"log4j2.{os.getpid()}"
        fresh.write_text(_LOG4J)
        fresh.replace(path)
    return path


def jvm_configuration(settings: Settings, jars: Sequence[Path], local: Path) -> dict[str, str]:
    """What a JVM is started with; may be seen on its command line.

    Args:
        settings: Memory, addresses, warehouse.
        jars: The class path beside Spark's own.
        local: A folder for what Spark spills, of this JVM alone.
    """
    folder = settings.paths.spark
    options = [
        f"-Dlog4j2.configurationFile=file:{log_configuration(settings)}",
        f"-Dderby.system.home={folder}",
        *_JVM_OPTIONS,
    ]
    return {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": f"{settings.spark.driver_memory_mb}m",
        "spark.driver.host": settings.spark.driver_host,
        "spark.driver.bindAddress": settings.spark.driver_host,
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.local.dir": str(local),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": worker_python(settings),
        "spark.executorEnv.PYTHONPATH": python_path(),
        "spark.sql.warehouse.dir": str(folder / "tables"),
        "spark.sql.extensions": EXTENSIONS,
        **session_configuration(settings),
    }


#: A heap that is asked for bit by bit and given back, by one thread: the machine has other work, too.
_JVM_OPTIONS: tuple[str, ...] = ("-XX:+UseSerialGC",)


def session_configuration(settings: Settings) -> dict[str, str]:
    """What a session is told, whoever runs its JVM; without secrets."""
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
    """What is set in a session once it is there: it is never on a command line."""
    _, secret = spark_properties(settings)
    return {f"spark.sql.catalog.{CATALOG}.{name}": value for name, value in secret.items()}


def worker_python(settings: Settings) -> str:
    """The interpreter of executors' Python workers: this one, unless the team names another."""
    return settings.spark.conf.get("spark.pyspark.python", sys.executable)


def python_path() -> str:
    """Where Python workers of executors on this machine find this code and what it needs."""
    places = [str(IMPORT_ROOT), *(place for place in sys.path if place and Path(place).is_dir())]
    return os.pathsep.join(dict.fromkeys(places))
