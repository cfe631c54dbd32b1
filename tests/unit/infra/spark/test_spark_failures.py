"""An error of Spark becomes one sentence with the next action, for py4j and for Spark Connect."""

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from holdfast.infra.spark.failures import SparkFailed, SparkUnavailable, WarehouseFailed, short_errors, spark_failure

PY4J = """An error occurred while calling o123.append.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
\tat org.apache.spark.Somewhere.run(Somewhere.scala:1)
Caused by: java.io.UncheckedIOException: org.apache.iceberg.exceptions.RuntimeIOException
\tat org.apache.iceberg.X
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""


class Local(PySparkException):
    def __init__(self):
        Exception.__init__(self)

    def __str__(self):
        return PY4J


def connect(message, trace=""):
    return SparkConnectGrpcException(message=message, server_stacktrace=trace)


def test_a_local_failure_is_its_innermost_cause():
    told = spark_failure("write the table", Local())
    assert told.message == "Spark failed to write the table: java.io.IOException: No space left on device."
    assert isinstance(told, WarehouseFailed)
    assert "Make room" in told.action


def test_a_failure_over_connect_is_its_innermost_cause_too():
    told = spark_failure("write", connect("Job aborted.", PY4J))
    assert told.message.endswith("java.io.IOException: No space left on device.")
    assert isinstance(told, WarehouseFailed)


def test_without_causes_the_first_line_is_shown():
    told = spark_failure("read", connect("[WITHOUT_SUGGESTION] no such thing\nVerify the spelling"))
    assert told.message == "Spark failed to read: [WITHOUT_SUGGESTION] no such thing."
    assert type(told) is SparkFailed


def test_a_java_failure_without_causes_is_its_own_message():
    said = "An error occurred while calling o1.sql.\n: x.S3Exception: no (Service: S3, Status Code: 403)\n\tat x.Y.z()"
    told = spark_failure("create", connect(said))
    assert told.message == "Spark failed to create: x.S3Exception: no (Service: S3, Status Code: 403)."
    assert "S3_SECRET_KEY" in told.action or "S3_ACCESS_KEY" in told.action


@pytest.mark.parametrize(
    ("said", "kind", "action"),
    [
        (
            "Caused by: org.sqlite.SQLiteException: [SQLITE_BUSY] The database file is locked",
            WarehouseFailed,
            "Let the process",
        ),
        ("Caused by: org.sqlite.SQLiteException: [SQLITE_NOTADB] File opened", WarehouseFailed, "another format"),
        (
            "Caused by: java.io.FileNotFoundException: /w/x (Read-only file system)",
            WarehouseFailed,
            "write access to the ware",
        ),
        (
            "Caused by: software.amazon.awssdk.core.exception.SdkClientException: Unable",
            WarehouseFailed,
            "are reachable",
        ),
        ("Caused by: org.postgresql.util.PSQLException: Connection to h:1 refused.", WarehouseFailed, "are reachable"),
        ("Cannot fast-forward: main is not an ancestor of audit_x", WarehouseFailed, "Run it again"),
        ("java.lang.OutOfMemoryError: Java heap space", SparkFailed, "DRIVER_MEMORY_MB"),
        ("<_InactiveRpcError: StatusCode.UNAVAILABLE failed to connect", SparkUnavailable, "HOLDFAST_SPARK__MASTER"),
        ("IllegalStateException: Cannot call methods on a stopped SparkContext", SparkUnavailable, "SPARK__SECRET"),
        ("Caused by: x.S3Exception: The request signature (SignatureDoesNotMatch)", WarehouseFailed, "S3_ACCESS_KEY"),
    ],
)
def test_known_causes_are_told_with_their_way_out(said, kind, action):
    told = spark_failure("do it", connect(said))
    assert type(told) is kind
    assert action in told.action


def test_a_connection_that_breaks_is_sparks_and_other_errors_pass():
    with pytest.raises(SparkUnavailable), short_errors("ask"):
        raise ConnectionRefusedError("[Errno 111] Connection refused")
    with pytest.raises(ZeroDivisionError), short_errors("ask"):
        _ = 1 / 0


def test_a_gateway_that_is_gone_is_told():
    class Gone(PySparkException):
        def __init__(self):
            Exception.__init__(self)

        def getStackTrace(self):
            raise ConnectionRefusedError

        def __str__(self):
            return "Answer from Java side is empty"

    assert type(spark_failure("go on", Gone())) is SparkUnavailable


def test_a_jvm_that_dies_under_a_call_is_told():
    told = spark_failure("look at the table", Py4JError("An error occurred while calling o53.sql"))
    assert type(told) is SparkUnavailable
    assert told.message == "Spark failed to look at the table: its JVM gave no answer."


def test_an_error_of_ours_in_a_python_worker_is_told_in_its_own_words():
    said = "Traceback:\nholdfast.processors.engine.state.errors.StoreDamaged: Store s is damaged. Mend it."
    assert spark_failure("read", connect(said)).message == "Spark failed to read: Store s is damaged. Mend it."


def test_a_server_that_is_away_is_told_in_grpcs_own_words():
    class Away(Exception):
        __module__ = "grpc._channel"

        def details(self):
            return "failed to connect to all addresses; connection refused"

        def __str__(self):
            return "<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE"

    told = spark_failure("start", Away())
    assert told.message == "Spark failed to start: failed to connect to all addresses; connection refused."
    assert type(told) is SparkUnavailable
