"""``SqlSource``: sends the rows of a SQL table as messages, by a cursor column that only grows.

    position ──► page of rows behind it ──► messages and the new position, in one transaction

Invariants:
    - A position has the cursor column and the columns of ``tie_break``, so equal cursor values are not lost.
    - With ``overlap``, rows that became visible behind the position are sent, too. The keys of the rows that were sent
      are in the state, so no row is sent twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.connectors import ExternalSystem
from holdfast.processors.engine.sources.source import SHUTDOWN_S, StatefulSource
from holdfast.processors.sources.retries import repeated
from holdfast.processors.sources.row_fields import FieldChoice, RowFields, check_number, option_invalid
from holdfast.processors.sources.sql_rows import SqlAway, SqlRows
from holdfast.processors.sources.sql_values import is_cursor_value, read, written

_log = structlog.get_logger("sources")

#: State keys: the position, and the rows of the overlap that were sent.
_POSITION, _ROW = "position", "row:"

#: Seconds, in addition to ``poll`` and ``patience``, within which the source reports.
_REPORT_S = 60.0

Overlap = timedelta | int | float


class CursorNull(HoldfastError):
    """A row has no value in a cursor column, so it has no place in the order. Fields: ``source``, ``columns``."""


class CursorWentBack(HoldfastError):
    """All rows have a cursor value before the position of the source. Fields: ``source``, ``position``."""


class CursorTies(HoldfastError):
    """Two rows have the same position, so a restart could lose one of them. Fields: ``source``, ``position``."""


class CursorUnusable(HoldfastError):
    """A cursor column has values of a type that a source can't use as a position. Fields: ``source``, ``seen``."""


class SqlSource(StatefulSource):
    """Sends each row of a table or query as a message, once, in the order of a cursor column.

    A row is sent when its cursor value is behind the position. A row that is updated with a greater cursor value is
    sent again, with its new content.

    Args:
        name: The name of the source, unique in the application.
        url: The SQLAlchemy URL of the database, for example ``postgresql+psycopg://user:password@host/shop``.
        table: The table or view, with its schema if it needs one: ``sales.orders``.
        query: A SELECT without ORDER BY, instead of ``table``.
        cursor: The column that only grows, for example a sequence or the time of the last change. It needs an index.
        tie_break: Columns that order rows with equal cursor values, for example the primary key. Without them, the
            cursor must be unique.
        overlap: How far behind the position rows are read again at each poll, as a number or a timedelta. It catches
            rows whose transaction was committed after that of greater cursor values. None reads only behind the
            position.
        key: The column of the message key, or a function of the row; None sends messages without a key.
        timestamp: The column of the time, or a function of the row; None means the time at which the row is read.
        poll: Seconds between two polls. With None, the source ends after the last row.
        batch: Maximum rows that are read and committed at a time, to 100,000.
        nulls: What rows without a cursor value mean: ``error`` stops the worker, and ``skip`` leaves them out.
        went_back: What a table means whose rows are all before the position: ``error`` stops the worker, and ``wait``
            waits for rows behind the position.
        patience: Seconds for which a database that does not answer is asked again, before the worker stops.
        engine_options: Further arguments of ``sqlalchemy.create_engine``.
        shutdown_timeout: Seconds that a stopping worker waits for the end of ``run``.

    Raises:
        SourceOptionInvalid: An argument has a value that is not allowed.
    """

    def __init__(  # tidy: allow-wide because each argument says one thing about the table.
        self,
        name: str,
        url: str,
        *,
        table: str | None = None,
        query: str | None = None,
        cursor: str,
        tie_break: Sequence[str] = (),
        overlap: Overlap | None = None,
        key: FieldChoice | None = None,
        timestamp: FieldChoice | None = None,
        poll: float | None = 5.0,
        batch: int = 1_000,
        nulls: Literal["error", "skip"] = "error",
        went_back: Literal["error", "wait"] = "error",
        patience: float = 60.0,
        engine_options: Mapping[str, Any] | None = None,
        shutdown_timeout: float = SHUTDOWN_S,
    ) -> None:
        super().__init__(name, shutdown_timeout)
        self._check(url, table, query, cursor, tie_break)
        if poll is not None:
            check_number(name, "poll", poll, 0.01, 86_400)
        check_number(name, "batch", batch, 1, 100_000)
        check_number(name, "patience", patience, 0, 86_400)
        if nulls not in ("error", "skip"):
            raise option_invalid(name, "nulls", nulls, "`error` or `skip`")
        if went_back not in ("error", "wait"):
            raise option_invalid(name, "went_back", went_back, "`error` or `wait`")
        if overlap is not None and (isinstance(overlap, bool) or not isinstance(overlap, (timedelta, int, float))):
            raise option_invalid(name, "overlap", overlap, "a number or a timedelta")
        self._rows = SqlRows(url, table, query, (cursor, *tie_break), engine_options or {})
        self._fields = RowFields(name, key, timestamp)
        self._overlap, self._poll, self._batch, self._patience = overlap, poll, int(batch), patience
        self._nulls, self._went_back = nulls, went_back
        self._position: tuple[Any, ...] | None = None
        #: The positions of the rows of the overlap that were sent, with their state keys.
        self._sent: dict[tuple[Any, ...], str] = {}

    @property
    def connects_to(self) -> ExternalSystem:
        """The URL of the database without its password, and the table."""
        return ExternalSystem("sql", self._rows.place)

    @property
    def version_functions(self) -> Sequence[Callable[..., Any]]:
        """The functions ``key`` and ``timestamp``."""
        return self._fields.functions

    def run(self) -> None:
        """Sends the rows behind the position, and polls for more every ``poll`` seconds."""
        self._position = self._held_position()
        self._sent = {read(value): key for key, value in self.state.items(_ROW)}
        if repeated(self, self._is_checked, SqlAway, self._patience) is None:
            return
        while self.running:
            if repeated(self, self._poll_once, SqlAway, self._patience) is None or self._poll is None:
                return
            self.sleep(self._poll)

    def cleanup(self, failed: bool) -> None:
        """Closes the connections."""
        self._rows.close()

    def _held_position(self) -> tuple[Any, ...] | None:
        held = self.state.get(_POSITION)
        if held is None:
            return None
        # Columns may be added to `tie_break`: the position then compares by the columns that it has.
        if tuple(held["columns"]) != self._rows.cursor[: len(held["columns"])]:
            columns = ", ".join(held["columns"])
            raise CursorUnusable(
                f"The position of source {self.name!r} has the columns {columns}; it now reads by "
                f"{', '.join(self._rows.cursor)}.",
                action=f"Read by {columns} again. Or give the source another name: it then reads all rows.",
                source=self.name,
                seen=columns,
            )
        return read(held["values"])

    def _is_checked(self) -> bool:
        self._rows.check()
        return True

    def _poll_once(self) -> bool:
        if self._nulls == "error" and self._rows.has_null():
            columns = " or ".join(self._rows.cursor)
            raise CursorNull(
                f"Source {self.name!r} reads rows without a value of {columns}: they have no place in the order.",
                action=f"Give each row a value of {columns}, and declare the columns NOT NULL. To leave such rows out, "
                "set `nulls='skip'`.",
                source=self.name,
                columns=list(self._rows.cursor),
            )
        if self._position is not None and self._went_back == "error" and self._rows.is_behind(self._position):
            raise CursorWentBack(
                f"Source {self.name!r} has read up to {self._shown(self._position)}, and all rows are before it. "
                "Expected a cursor that only grows.",
                action="If the newest rows were deleted, set `went_back='wait'`. If the table was filled again, give "
                "the source another name: it then reads all rows.",
                source=self.name,
                position=self._shown(self._position),
            )
        if self._position is not None and self._rows.has_twins(self._position):
            raise self._ties(
                self._position,
                f"Give these rows greater, different values of {self._rows.cursor[0]}: each of them is then sent.",
            )
        after = self._position if self._overlap is None else None
        bound = self._bound()
        while self.running:
            # One more row shows whether the last row of the page shares its position with the next one.
            rows = self._rows.page(after, bound, self._batch + 1)
            if len(rows) > self._batch and self._place(rows[-1]) == self._place(rows[-2]):
                raise self._ties(self._place(rows[-1]))
            after = self._send_page(rows[: self._batch], after)
            is_last = len(rows) <= self._batch
            self._report(is_last=is_last)
            if is_last:
                break
        return True

    def _report(self, *, is_last: bool) -> None:
        """Reports the position. Behind the last page, no row is left; otherwise, the number of rows is unknown."""
        position = "" if self._position is None else self._shown(self._position)
        within = None if self._poll is None else self._poll + self._patience + _REPORT_S
        self.report(position, {"rows": 0} if is_last else None, within)

    def _send_page(self, rows: list[dict[str, Any]], after: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        """Sends the rows of a page that were not sent, and commits them. Returns the position of the last row."""
        found = False
        for row in rows:
            place = self._place(row)
            if place == after:
                raise self._ties(place)
            after = place
            if place in self._sent:
                continue
            where = f"the row at {self._shown(place)}"
            key, timestamp_ms = self._fields.read(row, where)
            message = self.serialize(key, row, timestamp_ms=timestamp_ms)
            self.produce(message.value, message.key, message.headers, timestamp=timestamp_ms)
            found = True
            if self._overlap is not None:
                self._sent[place] = _ROW + json.dumps(written(place))
                self.state.set(self._sent[place], written(place))
            if self._overlap is None or self._position is None or place[0] > self._position[0]:
                self._position = place
        if found:
            assert self._position is not None
            columns = list(self._rows.cursor[: len(self._position)])
            self.state.set(_POSITION, {"columns": columns, "values": written(self._position), "format": 1})
            self._forget_sent()
            self.flush()
        return after

    def _place(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        place = tuple(row[name] for name in self._rows.cursor)
        for name, value in zip(self._rows.cursor, place, strict=True):
            if not is_cursor_value(value):
                raise CursorUnusable(
                    f"Column {name} of source {self.name!r} has the value {str(value)[:80]!r} of type "
                    f"{type(value).__name__}; expected a number, a text, a date, a time with date, a UUID or bytes.",
                    action=f"Choose another column, or convert {name} in a `query`.",
                    source=self.name,
                    seen=type(value).__name__,
                )
        return place

    def _ties(self, place: Sequence[Any], action: str = "") -> CursorTies:
        return CursorTies(
            f"Source {self.name!r} reads two rows at {self._shown(place)}: a restart could lose one of them.",
            action=action or "Add columns to `tie_break` that make each position unique, for example the primary key.",
            source=self.name,
            position=self._shown(place),
        )

    def _bound(self) -> Any:
        """The least cursor value that is read again; None without an overlap, and before the first row."""
        if self._overlap is None or self._position is None:
            return None
        try:
            return self._position[0] - self._overlap
        except TypeError as failure:
            raise CursorUnusable(
                f"`overlap` of source {self.name!r} is {self._overlap!r}, and column {self._rows.cursor[0]} has values "
                f"of type {type(self._position[0]).__name__}: their difference is not defined.",
                action="Set `overlap` to a number for a cursor of numbers, to a timedelta for dates and times, or to "
                "None.",
                source=self.name,
                seen=type(self._position[0]).__name__,
            ) from failure

    def _forget_sent(self) -> None:
        bound = self._bound()
        for place in [place for place in self._sent if bound is not None and place[0] < bound]:
            self.state.delete(self._sent.pop(place))

    def _shown(self, place: Sequence[Any]) -> str:
        return ", ".join(f"{name} = {str(value)[:80]}" for name, value in zip(self._rows.cursor, place, strict=False))

    def _check(self, url: Any, table: Any, query: Any, cursor: Any, tie_break: Any) -> None:
        if not isinstance(url, str) or "://" not in url:
            raise option_invalid(self.name, "url", type(url).__name__, "a URL of SQLAlchemy")
        if (table is None) == (query is None):
            raise option_invalid(self.name, "table", table, "either `table` or `query`")
        given = query if table is None else table
        if not isinstance(given, str) or not given:
            raise option_invalid(self.name, "query" if table is None else "table", given, "a text")
        if not isinstance(cursor, str) or not cursor:
            raise option_invalid(self.name, "cursor", cursor, "the name of a column")
        if isinstance(tie_break, str) or not all(isinstance(each, str) for each in tie_break):
            raise option_invalid(self.name, "tie_break", tie_break, "a list of columns")
