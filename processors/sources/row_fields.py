"""Reads the key and the timestamp of a message from a row of a file, of a table, or of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.infra.errors import BadConfiguration, HoldfastError

#: How a row gives a key or a timestamp: the name of a column, or a function of the row.
FieldChoice = str | Callable[[Any], Any]


class SourceOptionInvalid(BadConfiguration):
    """An argument of a source has a value that is not allowed. Fields: ``source``, ``option``, ``seen``."""


class RowRefused(HoldfastError):
    """A row can't become a message: its key or its timestamp is missing or invalid. Fields: ``source``, ``row``."""


@dataclass(frozen=True, slots=True)
class RowFields:
    """How the rows of one source give the key and the timestamp of their messages.

    Attributes:
        source: The name of the source, for errors.
        key: The column or function of the key; None means messages without a key.
        timestamp: The column or function of the timestamp; None means the time at which the row is read.
    """

    source: str
    key: FieldChoice | None = None
    timestamp: FieldChoice | None = None

    def __post_init__(self) -> None:
        """Raises SourceOptionInvalid if ``key`` or ``timestamp`` is neither a text nor a function."""
        for option in ("key", "timestamp"):
            given = getattr(self, option)
            if given is not None and not isinstance(given, str) and not callable(given):
                raise option_invalid(self.source, option, given, "the name of a column, or a function of the row")

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's functions, whose text is a part of the processor's code version."""
        return tuple(each for each in (self.key, self.timestamp) if callable(each))

    def read(self, row: Any, where: str) -> tuple[Any, int | None]:
        """Returns the key and the timestamp of a row, in milliseconds since 1970.

        Args:
            row: The row.
            where: Names the row in an error, for example ``row 3 of a.parquet``.

        Raises:
            RowRefused: The row has no key or no timestamp, the timestamp is none, or a function raised an error.
        """
        key = self._part("key", self.key, row, where)
        if key is None and self.key is not None:
            raise self._refused(where, "has no key", f"Let each row have a value for `key` ({_shown(self.key)}).")
        return key, None if self.timestamp is None else self._milliseconds(row, where)

    def _part(self, option: str, choice: FieldChoice | None, row: Any, where: str) -> Any:
        if choice is None:
            return None
        if isinstance(choice, str):
            if not isinstance(row, Mapping) or choice not in row:
                seen = ", ".join(map(str, row))[:200] if isinstance(row, Mapping) else type(row).__name__
                action = f"Correct `{option}` of the source, or the row."
                raise self._refused(where, f"has no {choice!r}; it has {seen or 'nothing'}", action)
            return row[choice]
        try:
            return choice(row)
        except Exception as failure:
            said = f"{type(failure).__name__}: {str(failure)[:200]}"
            action = f"Correct the function `{option}` of the source, or the row."
            raise self._refused(where, f"made `{option}` raise {said}", action) from failure

    def _milliseconds(self, row: Any, where: str) -> int:
        given = self._part("timestamp", self.timestamp, row, where)
        moment: Any = given
        if isinstance(given, str):
            try:
                moment = int(given) if given.isdigit() else datetime.fromisoformat(given)
            except ValueError:
                moment = None
        if isinstance(moment, datetime) and moment.tzinfo is not None:
            moment = round(moment.timestamp() * 1000)
        if type(moment) is int and moment >= 0:
            return moment
        expected = "milliseconds since 1970, or a date and time with its time zone"
        action = f"Let `timestamp` give {expected}; a function of the row may convert it."
        raise self._refused(where, f"has the timestamp {str(given)[:80]!r}; expected {expected}", action)

    def _refused(self, where: str, seen: str, action: str) -> RowRefused:
        return RowRefused(
            f"{where[:1].upper()}{where[1:]} {seen}.",
            action=action,
            source=self.source,
            row=where,
        )


def option_invalid(source: str, option: str, seen: Any, expected: str) -> SourceOptionInvalid:
    """The error for an argument of a source with a wrong value."""
    return SourceOptionInvalid(
        f"`{option}` of source {source!r} is {repr(seen)[:80]}; expected {expected}.",
        action=f"Correct `{option}`.",
        source=source,
        option=option,
        seen=repr(seen)[:80],
    )


def check_number(source: str, option: str, given: Any, least: float, most: float) -> None:
    """Raises SourceOptionInvalid unless ``given`` is a number from ``least`` to ``most``."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not least <= given <= most:
        raise option_invalid(source, option, given, f"a number from {least:g} to {most:,g}")


def _shown(choice: FieldChoice) -> str:
    return repr(choice) if isinstance(choice, str) else "its function"
