"""Spark's page-long failures as one sentence: what the cause was, and what to do about it.

Works alike for a session in this process (py4j) and over Spark Connect (gRPC).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.infra.errors import HoldfastError

#: What one of our own errors says, in the traceback of an executor's Python.
_OURS = re.compile(r"^\s*holdfast\.[\w.]+: (.+)$", re.MULTILINE)
#: So many characters of a cause are shown.
CAUSE_MAX = 500


class SparkFailed(HoldfastError):
    """Spark could not do what it was asked."""


class SparkUnavailable(SparkFailed):
    """The Spark that the settings name can't be reached, or ended."""


class WarehouseFailed(SparkFailed):
    """The warehouse's catalog or its files did not do what Spark asked."""


@contextmanager
def short_errors(doing: str) -> Iterator[None]:
    """Turn Spark's page-long failures into one sentence with the cause.

    Raises:
        SparkFailed: In place of what Spark raised; its subclasses where the cause is known.
    """
    try:
        yield
    except HoldfastError:
        raise
    except Exception as failure:
        if not _is_sparks(failure):
            raise
        raise spark_failure(doing, failure) from failure


def spark_failure(doing: str, failure: BaseException) -> SparkFailed:
    """What Spark raised, as one sentence with the next step."""
    texts = _texts(failure)
    ours = _OURS.findall("\n".join(texts))
    if ours:
        action = "What is published stays whole. Run it again when the cause is mended."
        return SparkFailed(f"Spark failed to {doing}: {ours[-1].rstrip('.')}.", action=action, doing=doing)
    cause = _cause(texts)
    kind, action = _verdict("\n".join(texts))
    return kind(f"Spark failed to {doing}: {cause[:CAUSE_MAX].rstrip('.')}.", action=action, doing=doing)


def _is_sparks(failure: BaseException) -> bool:
    modules = {kind.__module__.split(".")[0] for kind in type(failure).__mro__}
    # a gateway that is gone shows as a refused or reset connection
    return bool(modules & {"pyspark", "py4j", "grpc"}) or isinstance(failure, ConnectionError)


def _texts(failure: BaseException) -> list[str]:
    """All that is told of a failure: its own words, and the server's stack trace where there is one."""
    details = getattr(failure, "details", None)  # of gRPC's own errors: what it says beside its table of fields
    told = [str(details() or "") if callable(details) else "", str(failure)]
    trace = getattr(failure, "getStackTrace", None)  # over Connect the causes are in no other place
    try:
        told.append(str(trace() or "") if callable(trace) else "")
    except Exception:  # a gateway that is gone can't be asked for it
        told.append("")
    return told


def _cause(texts: list[str]) -> str:
    """The innermost cause, else the first line."""
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by:").strip() for line in lines if line.startswith("Caused by:")]
    # those that only say that there is a cause are passed over
    telling = [cause for cause in causes if not re.fullmatch(r"[\w.$]+(Exception|Error)?:?( null)?", cause)]
    own = [line.lstrip(": ") for line in lines if not line.startswith(("An error occurred while calling", "at "))]
    return telling[-1] if telling else causes[-1] if causes else own[0] if own else "no reason was given"


_Known = tuple[str, type[SparkFailed], str]
#: What was published stays published, so every action may end with the same advice.
_AGAIN = "then run it again: what is published stays whole, and the run goes on from it."
_KNOWN: tuple[_Known, ...] = (
    (
        r"SQLITE_BUSY|database is locked|SQLITE_LOCKED",
        WarehouseFailed,
        f"Another process holds the catalog's database (a backup, a database browser): let it end, {_AGAIN}",
    ),
    (
        r"SQLITE_NOTADB|file is not a database|SQLITE_CORRUPT|SQLITE_ERROR|"
        r"PSQLException: ERROR: (column|relation) \S+ .*does not exist",
        WarehouseFailed,
        "The catalog's database is of another format: name another one by HOLDFAST_WAREHOUSE__CATALOG_URL, or put it "
        f"back from its backup, {_AGAIN}",
    ),
    (
        r"No space left on device|SQLITE_FULL|Disk quota exceeded|database or disk is full",
        WarehouseFailed,
        f"Make room where the warehouse and its catalog are, {_AGAIN}",
    ),
    (
        r"Read-only file system|SQLITE_READONLY|SQLITE_CANTOPEN|readonly database|Permission denied|"
        r"Mkdirs failed|AccessDenied",
        WarehouseFailed,
        f"Let this user write the warehouse's files and its catalog, {_AGAIN}",
    ),
    (
        r"password authentication failed|InvalidAccessKeyId|SignatureDoesNotMatch|"
        r"Unable to load credentials|S3Exception.*Status Code: 40[13]",
        WarehouseFailed,
        "Correct HOLDFAST_WAREHOUSE__CATALOG_USER and __CATALOG_PASSWORD, or HOLDFAST_WAREHOUSE__S3_ACCESS_KEY and "
        f"__S3_SECRET_KEY, {_AGAIN}",
    ),
    (
        r"NoSuchBucket",
        WarehouseFailed,
        f"Create the bucket that HOLDFAST_WAREHOUSE__URL names, or correct it, {_AGAIN}",
    ),
    (
        r"S3FileIO.*(ClassNotFound|not found)|Cannot find class org.apache.iceberg.aws",
        WarehouseFailed,
        "The Spark that runs lacks the jars for S3: those of set s3 in jars.lock. A warm one takes them when it is "
        "started again (`holdfast spark stop`, `holdfast spark start`).",
    ),
    (
        r"PSQLException.*(refused|terminating|I/O error|attempt failed)|SdkClientException|Unable to execute HTTP|"
        r"UncheckedSQLException: (Cannot|Failed to) (connect|initialize)",
        WarehouseFailed,
        f"See to it that the catalog's database and the object store run and can be reached, {_AGAIN}",
    ),
    (
        r"TABLE_OR_VIEW_NOT_FOUND",  # also what is said of a table whose metadata can't be read
        WarehouseFailed,
        "Materialise the snapshot of that table. If it was there before: see to it that the catalog's database and the "
        f"object store run and can be reached, {_AGAIN}",
    ),
    (
        r"CommitFailedException|Found conflicting files|is not an ancestor of",
        WarehouseFailed,
        "Another run wrote the table at the same time; nothing of this one is published. Run it again.",
    ),
    (
        r"OutOfMemoryError|GC overhead",
        SparkFailed,
        f"Give the driver more memory by HOLDFAST_SPARK__DRIVER_MEMORY_MB, {_AGAIN}",
    ),
    (
        r"UNAUTHENTICATED|Invalid authentication token|PERMISSION_DENIED",
        SparkUnavailable,
        f"Set HOLDFAST_SPARK__TOKEN to the token that the Spark Connect server asks for, {_AGAIN}",
    ),
    (
        r"StatusCode\.UNAVAILABLE|failed to connect to all addresses|Socket closed|Connection reset|"
        r"Connection refused|Answer from Java side is empty|Error while sending or receiving|JAVA_GATEWAY_EXITED|"
        r"All masters are unresponsive|INVALID_HANDLE|Broken pipe",
        SparkUnavailable,
        f"See to it that the Spark of HOLDFAST_SPARK__MASTER runs and can be reached, {_AGAIN}",
    ),
)


def _verdict(told: str) -> tuple[type[SparkFailed], str]:
    for pattern, kind, action in _KNOWN:
        if re.search(pattern, told):
            return kind, action
    return SparkFailed, "See the cause; what is published stays whole. Run it again when the cause is mended."
