"""Turns Spark's page-long errors into one sentence with the cause, and an action for the operator.

The result is the same for sessions in this process (py4j) and over Spark Connect (gRPC).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.infra.errors import HoldfastError
from holdfast.infra.masking import masked
from holdfast.infra.settings import load_settings

#: Matches an error of Holdfast in the traceback of one of Spark's Python workers.
_OURS = re.compile(r"^\s*holdfast\.[\w.]+: (.+)$", re.MULTILINE)
#: Maximum number of characters of a cause that a message shows.
CAUSE_MAX = 500
#: Matches the error text of a locked SQLite database.
LOCKED = r"SQLITE_BUSY|database is locked|SQLITE_LOCKED"


class SparkFailed(HoldfastError):
    """A query, or another request to Spark, failed."""


class SparkUnavailable(SparkFailed):
    """The Spark of ``HOLDFAST_SPARK__MASTER`` can't be reached, or has ended."""


class WarehouseFailed(SparkFailed):
    """The warehouse's catalog or its files refused Spark's request."""


@contextmanager
def short_errors(doing: str) -> Iterator[None]:
    """Context manager that replaces errors of Spark by SparkFailed, or by a subclass if the cause is known.

    ``doing`` says what Spark was asked to do, for example ``publish the table``.
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
    """The SparkFailed for an exception of Spark; ``doing`` says what Spark was asked to do."""
    # Secrets are masked before the text is cut, because a part of a secret is not recognised.
    texts = [masked(text) for text in _texts(failure)]
    ours = _OURS.findall("\n".join(texts))
    if ours:
        return SparkFailed(f"Spark failed to {doing}: {ours[-1].rstrip('.')}.", action=_MEND, doing=doing)
    kind, action = _verdict("\n".join(texts))
    message = f"Spark failed to {doing}: {_cause(texts)[:CAUSE_MAX].rstrip('.')}."
    if re.search(LOCKED, "\n".join(texts)):
        from holdfast.infra.warehouse.catalog import locked_by  # imported late, because it loads the Iceberg library

        # If the settings are invalid, the catalog is not named. Invalid settings must not hide Spark's failure.
        with suppress(HoldfastError):
            settings = load_settings()
            message = f"{message} Locked is the warehouse's catalog {settings.catalog}. {locked_by(settings.catalog)}"
    return kind(message, action=action, doing=doing)


def _is_sparks(failure: BaseException) -> bool:
    modules = {kind.__module__.split(".")[0] for kind in type(failure).__mro__}
    # ConnectionError counts as an error of Spark, because an ended JVM causes refused or reset connections
    return bool(modules & {"pyspark", "py4j", "grpc"}) or isinstance(failure, ConnectionError)


def _texts(failure: BaseException) -> list[str]:
    """All texts of an exception: gRPC's details, the exception's message, and the server's stack trace."""
    # Only gRPC's errors have the method ``details``. It returns the bare message; ``str`` adds a list of fields.
    details = getattr(failure, "details", None)
    texts = [str(details() or "") if callable(details) else "", str(failure)]
    # Over Spark Connect, only the Java stack trace contains the causes.
    trace = getattr(failure, "getStackTrace", None)
    with suppress(Exception):  # The call fails if the JVM has ended.
        texts.append(str(trace() or "") if callable(trace) else "")
    return texts


def _cause(texts: list[str]) -> str:
    """The innermost cause that the texts contain; if they contain no cause, the first line."""
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by:").strip() for line in lines if line.startswith("Caused by:")]
    # A cause that is only the name of an exception class is skipped, because it explains nothing.
    with_text = [cause for cause in causes if not re.fullmatch(r"[\w.$]+(Exception|Error)?:?( null)?", cause)]
    own = [line.lstrip(": ") for line in lines if not line.startswith(("An error occurred while calling", "at "))]
    return with_text[-1] if with_text else causes[-1] if causes else own[0] if own else "its JVM gave no answer"


_Known = tuple[str, type[SparkFailed], str]
_MEND = "Mend the cause, then run it again. Published versions stay intact."
#: The last words of most actions below (an action tells the operator what to do). They say that the failed run changed
#: no published version.
_AGAIN = "then run it again; published versions stay intact."
_KNOWN: tuple[_Known, ...] = (
    (
        LOCKED,
        WarehouseFailed,
        f"Let the process that locks the catalog's database end (a backup, a database browser), {_AGAIN}",
    ),
    (
        r"SQLITE_NOTADB|file is not a database|SQLITE_CORRUPT|SQLITE_ERROR|"
        r"PSQLException: ERROR: (column|relation) \S+ .*does not exist",
        WarehouseFailed,
        "The catalog's database has another format: set `HOLDFAST_WAREHOUSE__CATALOG_URL` to another database, or "
        f"restore this one from its backup, {_AGAIN}",
    ),
    (
        r"No space left on device|SQLITE_FULL|Disk quota exceeded|database or disk is full",
        WarehouseFailed,
        f"Make room on the disk of the warehouse and of its catalog, {_AGAIN}",
    ),
    (
        r"Read-only file system|SQLITE_READONLY|SQLITE_CANTOPEN|readonly database|Permission denied|"
        r"Mkdirs failed|AccessDenied",
        WarehouseFailed,
        f"Give this user write access to the warehouse's files and to its catalog, {_AGAIN}",
    ),
    (
        r"password authentication failed|InvalidAccessKeyId|SignatureDoesNotMatch|"
        r"Unable to load credentials|S3Exception.*Status Code: 40[13]",
        WarehouseFailed,
        "Correct `HOLDFAST_WAREHOUSE__CATALOG_USER` and `__CATALOG_PASSWORD`, or `HOLDFAST_WAREHOUSE__S3_ACCESS_KEY` "
        f"and `__S3_SECRET_KEY`, {_AGAIN}",
    ),
    (
        r"NoSuchBucket",
        WarehouseFailed,
        f"Create the bucket of `HOLDFAST_WAREHOUSE__URL`, or correct the setting, {_AGAIN}",
    ),
    (
        r"S3FileIO.*(ClassNotFound|not found)|Cannot find class org.apache.iceberg.aws",
        WarehouseFailed,
        "Start Spark with the jars of set s3 in `jars.lock`. The warm Spark gets them at its next start: run "
        "`holdfast spark stop`, then `holdfast spark start`.",
    ),
    (
        r"PSQLException.*(refused|terminating|I/O error|attempt failed)|SdkClientException|Unable to execute HTTP|"
        r"UncheckedSQLException: (Cannot|Failed to) (connect|initialize)",
        WarehouseFailed,
        f"Check that the catalog's database and the object store run and are reachable, {_AGAIN}",
    ),
    (
        r"TABLE_OR_VIEW_NOT_FOUND",  # Spark also raises this error if the table exists, but its metadata can't be read.
        WarehouseFailed,
        "Materialise the snapshot of that table. If the table existed before: check that the catalog's database and "
        f"the object store run and are reachable, {_AGAIN}",
    ),
    (
        r"CommitFailedException|Found conflicting files|is not an ancestor of",
        WarehouseFailed,
        "Run it again: another run wrote the table at the same time, and this run published nothing.",
    ),
    (
        r"OutOfMemoryError|GC overhead",
        SparkFailed,
        f"Give the driver more memory with `HOLDFAST_SPARK__DRIVER_MEMORY_MB`, {_AGAIN}",
    ),
    (
        r"UNAUTHENTICATED|Invalid authentication token|PERMISSION_DENIED",
        SparkUnavailable,
        f"Set `HOLDFAST_SPARK__TOKEN` to the token of the Spark Connect server, {_AGAIN}",
    ),
    (
        r"StatusCode\.UNAVAILABLE|failed to connect to all addresses|Socket closed|Connection reset|"
        r"Connection refused|Answer from Java side is empty|Error while sending or receiving|JAVA_GATEWAY_EXITED|"
        r"All masters are unresponsive|INVALID_HANDLE|Broken pipe|stopped SparkContext|"
        # If the connection to the JVM broke during a call, py4j's error has this text and no cause.
        r"\A\s*An error occurred while calling \S+\s*\Z",
        SparkUnavailable,
        "Check that the Spark of `HOLDFAST_SPARK__MASTER` runs and is reachable, and that `HOLDFAST_SPARK__SECRET` is "
        f"the secret of a standalone cluster, {_AGAIN}",
    ),
)


def _verdict(texts: str) -> tuple[type[SparkFailed], str]:
    fitting = ((kind, action) for pattern, kind, action in _KNOWN if re.search(pattern, texts))
    return next(fitting, (SparkFailed, _MEND))
