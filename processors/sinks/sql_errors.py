"""What the errors of a SQL database mean: it is away, a table or column is missing, or it refuses a row."""

from __future__ import annotations

from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

#: SQLSTATE classes and codes of PostgreSQL that mean: try again later.
_LATER_CLASSES, _LATER = ("08", "40", "53", "57"), ("55P03", "25P03", "25P02")
#: SQLSTATE codes of a table, a schema or a column that does not exist.
_MISSING = ("42P01", "42703", "3F000")


def is_away(failure: BaseException) -> bool:
    """Whether the database does not answer, or asks to try again later."""
    if isinstance(failure, PoolTimeout):
        return True
    if not isinstance(failure, DBAPIError):
        return False
    if failure.connection_invalidated:
        return True
    if (state := _state(failure)) is not None:
        return state[:2] in _LATER_CLASSES or state in _LATER
    text = str(failure.orig)
    if not isinstance(failure, (OperationalError, InterfaceError)) or is_missing(failure) or refuses_row(failure):
        return False
    # Errors of SQLite have no code that all versions of Python show.
    own = "no column" not in text and "ON CONFLICT" not in text and "readonly" not in text
    return own and "too many SQL variables" not in text


def is_missing(failure: BaseException) -> bool:
    """Whether the table or a column does not exist."""
    if not isinstance(failure, DBAPIError):
        return False
    text = str(failure.orig)
    return _state(failure) in _MISSING or "no such table" in text or "has no column named" in text


def refuses_row(failure: BaseException) -> bool:
    """Whether the database refuses a row because of its values."""
    state = _state(failure)
    if isinstance(failure, (IntegrityError, DataError)) or (state or "")[:2] in ("22", "23"):
        return True
    if isinstance(failure, InterfaceError) and "Error binding parameter" in str(failure.orig):
        return True  # SQLite's driver up to Python 3.11
    if isinstance(failure, DBAPIError):  # 42804: the value has another type. Without a code, the driver refused it
        return state == "42804" or (state is None and not isinstance(failure, (OperationalError, InterfaceError)))
    # The driver, or SQLAlchemy, could not convert a value.
    return isinstance(failure, (StatementError, OverflowError, TypeError, ValueError))


def why(failure: Exception) -> str:
    """The database's words about a refused row, in one line."""
    seen = failure.orig if isinstance(failure, StatementError) and failure.orig is not None else failure
    return f"{type(seen).__name__}: {' '.join(str(seen).split())[:300]}".rstrip(".")


def _state(failure: BaseException) -> str | None:
    """The SQLSTATE of an error of PostgreSQL, from psycopg or psycopg2; None if it has none."""
    orig = getattr(failure, "orig", None)
    found = getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None)
    return str(found) if found else None
