"""Creates an archive of Spark's and Iceberg's loaded Java classes, so that Spark starts with less CPU.

A Spark process with a temporary warehouse runs the same kinds of queries as a snapshot. When this process ends, its JVM
writes the loaded classes to the archive. The creation takes 50 seconds of CPU and 210 MB in the cache folder, once for
each Java, version of the jars, and Python environment.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import WARM, Settings, WarehouseSettings
from holdfast.infra.settings.groups import SparkSettings
from holdfast.infra.setup.java import find_java
from holdfast.infra.spark.configuration import spark_class_data, spark_jars
from holdfast.infra.spark.server import start_server, stop_server
from holdfast.infra.system.files import locked
from holdfast.infra.warehouse.properties import CATALOG

#: Maximum seconds that the JVM may take at its end to write the archive of classes; two idle cores need ten seconds.
WRITE_WITHIN_S = 300.0
#: Number of rows in the test table. It is small, because only the loaded classes matter.
_ROWS = 200
_STATEMENTS = (
    "MERGE INTO rows t USING (SELECT *, row_number() OVER (PARTITION BY key ORDER BY name) AS n FROM changed) c "
    "ON t.key = c.key WHEN MATCHED AND c.name = 'other 1' THEN DELETE WHEN MATCHED THEN UPDATE SET name = c.name "
    "WHEN NOT MATCHED THEN INSERT (key, name, part) VALUES (c.key, c.name, 0)",
    "ALTER TABLE rows CREATE BRANCH attempt",
    "INSERT INTO holdfast.recording.rows.branch_attempt SELECT * FROM rows WHERE part = 1",
    f"CALL {CATALOG}.system.fast_forward('recording.rows', 'main', 'attempt')",
    "SELECT part, count(*), bit_xor(xxhash64(key, name)), sum(number), max(at), to_json(struct(max(name))) "
    "FROM rows GROUP BY part ORDER BY part",
    "SELECT a.key, b.name FROM rows a LEFT JOIN changed b ON a.key = b.key WHERE a.name LIKE 'o%' "
    "UNION ALL SELECT key, name FROM holdfast.recording.rows.files f JOIN changed ON true LIMIT 5",
    "DROP TABLE rows",
)


class ClassesNotArchived(HoldfastError):
    """The archive of Spark's classes could not be created; Spark runs without the archive."""


def record_classes(settings: Settings) -> Path:
    """Create the archive of classes for the settings' Spark, unless it exists; returns the archive's file.

    Raises:
        NoJava, JarUnavailable: Java or the jars are missing.
        ClassesNotArchived: Spark does not run locally, or Spark failed.
    """
    java = find_java()
    archive = spark_class_data(settings, java, spark_jars(settings, java))
    if archive is None:
        raise ClassesNotArchived(
            f"Spark runs on {settings.spark.master} or has jars of its own; only a Spark that runs in its driver "
            "alone, with Holdfast's jars, can have an archive.",
            action="Nothing has to be done: Spark runs without it. To have one, set `HOLDFAST_SPARK__MASTER` to "
            "`local[*]` or `warm`, and leave `spark.jars` and `spark.driver.extraClassPath` out of "
            "`HOLDFAST_SPARK__CONF`.",
        )
    # `recording` creates the archive's folder, so it is called before the lock file is created in the folder.
    recording = archive.recording()
    with locked(archive.file.with_suffix(".lock")):
        if archive.is_usable:
            return archive.file
        why = None
        try:
            with TemporaryDirectory(prefix="holdfast-recording-") as folder:
                _record(settings, Path(folder), recording)
        except Exception as failed:  # Every type of exception is caught, because Spark's client raises its own types.
            why = failed
        if why is not None or not archive.keep():
            raise ClassesNotArchived(
                f"Spark's classes were not archived: {why or 'its JVM wrote no archive'}.",
                action="Nothing has to be done: Spark runs without the archive. To try again, run "
                "`holdfast spark archive`.",
            ) from why
        return archive.file


def _record(settings: Settings, folder: Path, options: tuple[str, ...]) -> None:
    from holdfast.infra.spark.session import spark_session, stop_spark

    own = settings.model_copy(
        update={"home": folder, "spark": SparkSettings(master=WARM), "warehouse": WarehouseSettings()}
    )
    start_server(own, options)
    try:
        session = spark_session(own, app_name="recording of classes")
        try:
            _exercise(session)
        finally:
            stop_spark(session)
    finally:
        stop_server(own, WRITE_WITHIN_S)


def _exercise(session: Any) -> None:
    """Run queries that load all classes that snapshots need: create, append, merge, windows, joins, branches, …"""
    session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.recording")
    session.sql(f"USE {CATALOG}.recording")
    session.sql(
        "CREATE TABLE rows (key binary, name string, at timestamp, number decimal(20, 3), part int) "
        "USING iceberg PARTITIONED BY (part) TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')"
    )
    made = session.range(_ROWS).selectExpr(
        "unhex(hex(id)) AS key",
        "concat('name ', id) AS name",
        "timestamp_millis(id) AS at",
        "CAST(id AS decimal(20, 3)) AS number",
        "CAST(id % 4 AS int) AS part",
    )
    made.writeTo(f"{CATALOG}.recording.rows").append()
    changes = [(bytes([number]), f"other {number}") for number in range(20)]
    session.createDataFrame(changes, "key binary, name string").createOrReplaceTempView("changed")
    for statement in _STATEMENTS:
        session.sql(statement).collect()
