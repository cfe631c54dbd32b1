"""The Spark session: one JVM for each process, made when first asked for.

Invariants:
    - The JVM listens on loopback only, works in UTC, and writes below the home folder.
    - Nothing is resolved or downloaded while Spark runs: its jars are the locked ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from infra.errors import HoldfastError
from infra.jars import JarSource, fetch_jars
from infra.java import find_java, spark_java_home
from infra.settings import Settings

#: The name of the Iceberg catalog, alike in Spark and in every other reader.
CATALOG = "holdfast"

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


class SparkFailed(HoldfastError):
    """Spark could not do what it was asked."""


def spark_session(settings: Settings, *, app_name: str) -> SparkSession:
    """The session of this process.

    Args:
        settings: Where Java, jars and the warehouse are; the driver's memory.
        app_name: Shown in Spark's own pages.

    Raises:
        NoJava: There is no Java that could run it.
        JarUnavailable: Its jars are not here and could not be fetched.
    """
    java = find_java()
    jars = fetch_jars("spark", settings.cache, JarSource(java, settings.ivy_settings))
    warehouse = settings.paths.warehouse
    warehouse.mkdir(parents=True, exist_ok=True)
    log4j = warehouse / "log4j2.properties"
    log4j.write_text(_LOG4J)
    with _environment(JAVA_HOME=str(spark_java_home(java, settings.cache)), SPARK_LOCAL_IP="127.0.0.1"):
        builder = SparkSession.builder.appName(app_name).master(settings.spark.master)
        for name, value in _configuration(settings, jars, warehouse, log4j).items():
            builder = builder.config(name, value)
        return builder.getOrCreate()


@contextmanager
def short_errors(doing: str) -> Iterator[None]:
    """Turn Spark's page-long failures into one sentence with the cause.

    Raises:
        SparkFailed: In place of what Spark raised.
    """
    try:
        yield
    except HoldfastError:
        raise
    except Exception as failure:
        if not isinstance(failure, PySparkException) and "py4j" not in type(failure).__module__:
            raise
        lines = str(failure).splitlines()
        causes = [line.strip() for line in lines if line.startswith("Caused by:")]
        told = [line.strip() for line in lines if line.strip()]
        cause = causes[-1].removeprefix("Caused by: ") if causes else (told[0] if told else repr(failure))
        raise SparkFailed(
            f"Spark failed to {doing}: {cause[:500]}.",
            action="See the cause; nothing was published. Run it again when the cause is mended.",
            doing=doing,
        ) from failure


def _configuration(settings: Settings, jars: Sequence[Path], warehouse: Path, log4j: Path) -> dict[str, str]:
    catalog = f"spark.sql.catalog.{CATALOG}"
    return {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": f"{settings.spark.driver_memory_mb}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j} -Dderby.system.home={warehouse}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": sys.executable,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.warehouse.dir": str(warehouse / "spark"),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.sources.v2.bucketing.enabled": "true",
        "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
        "spark.sql.requireAllClusterKeysForCoPartition": "false",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{settings.paths.catalog}",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": f"file://{warehouse}/data",
        f"{catalog}.cache-enabled": "false",
    }


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """The JVM's launcher reads these from the environment of this process; put it back afterwards."""
    environment = os.environ  # tidy: allow-environment because the JVM's launcher reads it
    before = {name: environment.get(name) for name in values}
    environment.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
