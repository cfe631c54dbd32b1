"""``FileSource``: sends each row of CSV, JSON lines and Parquet files as a message, exactly once.

    listing ──► files in the order of their names ──► rows ──► messages and position, in one transaction

Invariants:
    - The position of a file and the messages of its rows are committed together.
    - A file is read on only if the part that was read is still the same. Otherwise the source stops with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.infra.storage.input_files import InputFile, InputFiles, InputUnreadable
from holdfast.processors.engine.connectors import ExternalSystem
from holdfast.processors.engine.sources.source import SHUTDOWN_S, StatefulSource
from holdfast.processors.sources.file_rows import (
    FORMATS,
    UNFINISHED,
    CsvFormat,
    FileFormat,
    JsonLines,
    ParquetFormat,
    Row,
    RowUnreadable,
    format_of,
)
from holdfast.processors.sources.read_files import ReadFile, Reading, decoded, gone
from holdfast.processors.sources.retries import repeated
from holdfast.processors.sources.row_fields import FieldChoice, RowFields, check_number, option_invalid

_log = structlog.get_logger("sources")

#: The state key of a file is this prefix and the name of the file.
_PREFIX = "file:"
#: A unit has at most this many bytes of text rows, so that it stays below the limit of a transaction.
_UNIT_BYTES = 8 << 20
#: Seconds, in addition to ``watch`` and ``patience``, within which the source reports.
_REPORT_S = 60.0
#: Files that the state remembers. Beyond it, files that no longer exist are forgotten.
REMEMBERED_MAX = 100_000


class InputMissing(HoldfastError):
    """The file of a source does not exist. Fields: ``source``, ``url``."""


class FileSource(StatefulSource):
    """Sends each row of files as a message, once. The position in each file is kept in the source's state.

    Files are read in the order of their names. A text file may grow at its end. What was read must stay as it is.

    Args:
        name: The name of the source, unique in the application.
        path: A path or an fsspec URL, for example ``s3://bucket/in/*.parquet``. It may be a pattern with ``*``, ``**``,
            ``?`` or ``[...]``.
        key: The column of the message key, or a function of the row; None sends messages without a key.
        timestamp: The column of the time, or a function of the row: milliseconds since 1970, or a date and time with
            its time zone. None means the time at which the row is read.
        format: ``csv``, ``jsonl`` or ``parquet``, or a ``CsvFormat`` with options. None takes it from the ending of
            ``path``.
        watch: Seconds between two looks for new files and new rows. With None, the source ends after the last row.
        batch: Maximum rows that are committed at a time, to 100,000.
        gone: What a file means that was read in part and no longer exists: ``error`` stops the worker, and ``skip``
            reads the other files.
        patience: Seconds for which a file that can't be read is tried again, before the worker stops.
        storage_options: Options of the fsspec driver.
        shutdown_timeout: Seconds that a stopping worker waits for the end of ``run``.

    Raises:
        SourceOptionInvalid: An argument has a value that is not allowed.
    """

    def __init__(  # tidy: allow-wide because each argument says one thing about the files.
        self,
        name: str,
        path: str,
        *,
        key: FieldChoice | None = None,
        timestamp: FieldChoice | None = None,
        format: Literal["csv", "jsonl", "parquet"] | FileFormat | None = None,
        watch: float | None = None,
        batch: int = 1_000,
        gone: Literal["error", "skip"] = "error",
        patience: float = 30.0,
        storage_options: Mapping[str, Any] | None = None,
        shutdown_timeout: float = SHUTDOWN_S,
    ) -> None:
        super().__init__(name, shutdown_timeout)
        if not isinstance(path, str) or not path:
            raise option_invalid(name, "path", path, "a path, a pattern or a URL")
        self._format = _chosen(name, path, format)
        self._fields = RowFields(name, key, timestamp)
        if watch is not None:
            check_number(name, "watch", watch, 0.01, 86_400)
        check_number(name, "batch", batch, 1, 100_000)
        check_number(name, "patience", patience, 0, 86_400)
        if gone not in ("error", "skip"):
            raise option_invalid(name, "gone", gone, "`error` or `skip`")
        self._watch, self._batch, self._gone, self._patience = watch, int(batch), gone, patience
        self._files = InputFiles(path, storage_options)
        self._read: dict[str, ReadFile] = {}
        self._waits_for_line_end: set[str] = set()
        #: Parquet files that can't be read yet, and for how many seconds they have not changed.
        self._unfinished: dict[str, tuple[InputFile, float]] = {}
        #: The bytes that are left of each file which is not read to its end, and their sum.
        self._left: dict[str, int] = {}
        self._left_bytes = 0
        #: The last position that was reported.
        self._position = ""

    @property
    def connects_to(self) -> ExternalSystem:
        """The path or URL of the files."""
        return ExternalSystem("files", self._files.shown)

    @property
    def version_functions(self) -> Sequence[Callable[..., Any]]:
        """The functions ``key`` and ``timestamp``."""
        return self._fields.functions

    def run(self) -> None:
        """Reads the files to their ends, and looks again every ``watch`` seconds."""
        self._read, self._waits_for_line_end = decoded(self.state.items(_PREFIX), _PREFIX), set()
        self._unfinished = {}
        while self.running:
            if repeated(self, self._pass, InputUnreadable, self._patience) is None or self._watch is None:
                return
            self.sleep(self._watch)

    def _pass(self) -> bool:
        listed = self._files.listed()
        if not listed and not self._files.is_pattern and self._watch is None and not self._read:
            raise InputMissing(
                f"Source {self.name!r} reads {self._files.shown}, and there is no such file.",
                action="Correct `path`, or create the file. With `watch`, the source waits for it.",
                source=self.name,
                url=self._files.shown,
            )
        self._forget_gone({each.name for each in listed})
        unread = [each for each in listed if not self._is_read(each)]
        self._left = {each.name: each.size - self._read_bytes(self._read.get(each.name)) for each in unread}
        self._left_bytes = sum(self._left.values())
        self._report("")
        for file in unread:
            known = self._read.get(file.name)
            if not self.running:
                break
            try:
                self._read_on(file, known)
            except RowUnreadable as failure:
                if not self._may_be_finished_later(file, failure):
                    raise
        return True

    def _is_read(self, listed: InputFile) -> bool:
        known = self._read.get(listed.name)
        return known is not None and known.is_same(listed)

    def _read_bytes(self, read: ReadFile | None) -> int:
        """The bytes of a file that were read. Positions in a Parquet file are rows, so it counts when it is done."""
        if read is None or not (read.done or not isinstance(self._format, ParquetFormat)):
            return 0
        return read.size if read.done else read.at

    def _report(self, name: str) -> None:
        """Reports the position in the file ``name``, and what is left of all files."""
        if (read := self._read.get(name)) is not None:
            self._position = f"{name}, {'row' if isinstance(self._format, ParquetFormat) else 'byte'} {read.at:,}"
        within = None if self._watch is None else self._watch + self._patience + _REPORT_S
        self.report(self._position, {"files": len(self._left), "bytes": self._left_bytes}, within)

    def _may_be_finished_later(self, listed: InputFile, failure: RowUnreadable) -> bool:
        """Whether a Parquet file may still be written: its end is needed to read it, and is written last."""
        if self._watch is None or not isinstance(self._format, ParquetFormat) or failure.fields["at"]:
            return False
        before, seconds = self._unfinished.get(listed.name, (None, 0.0))
        seconds = seconds + self._watch if before == listed else 0.0
        if not seconds:
            _log.warning("a file is not complete; the source waits", source=self.name, error=failure.message)
        self._unfinished[listed.name] = (listed, seconds)
        return seconds < self._patience

    def _read_on(self, listed: InputFile, known: ReadFile | None) -> None:
        text = not isinstance(self._format, ParquetFormat)
        with self._files.opened(listed.name) as file:
            reading = Reading(file, listed, known, text=text)
            rows = size = 0
            last: Row | None = None
            try:
                for row in self._format.rows(file, reading.read.at, listed.name):
                    if self._is_left(row, listed.name):
                        break
                    self._send(row, f"the row of file {listed.name} before position {row.end}")
                    last, rows, size = row, rows + 1, size + len(row.raw)
                    if rows % self._batch == 0 or size >= _UNIT_BYTES:
                        self._commit(listed.name, reading.up_to(row.end, row.raw, complete=row.complete))
                        last, size = None, 0
                        if not self.running:
                            return
            finally:
                # What was sent before an error belongs to the position: a second attempt begins behind it.
                if last is not None:
                    self._keep(listed.name, reading.up_to(last.end, last.raw, complete=last.complete))
            self._commit(listed.name, reading.ended())
        if rows:
            _log.info("file read", source=self.name, file=listed.name, rows=rows)

    def _is_left(self, row: Row, name: str) -> bool:
        """Whether a row stays in the file, because its writer may not have finished it. Only the last row may."""
        if row.complete:
            return False
        if self._watch is not None:
            if name not in self._waits_for_line_end:
                self._waits_for_line_end.add(name)
                _log.warning("the last row of a file has no line end; the source waits for it", file=name)
            return True
        if row.value is UNFINISHED:
            raise RowUnreadable(
                f"File {name} ends in the middle of the row at byte {row.end:,}.",
                action="Complete the row at the end of the file; leave what is before it as it is.",
                file=name,
                at=row.end,
            )
        return False

    def _send(self, row: Row, where: str) -> None:
        key, timestamp_ms = self._fields.read(row.value, where)
        message = self.serialize(key, row.value, timestamp_ms=timestamp_ms)
        self.produce(message.value, message.key, message.headers, timestamp=timestamp_ms)

    def _keep(self, name: str, read: ReadFile) -> None:
        self._read[name] = read
        self.state.set(_PREFIX + name, msgspec.to_builtins(read))

    def _commit(self, name: str, read: ReadFile) -> None:
        self._keep(name, read)
        self.flush()
        left = max(0, read.size - self._read_bytes(read))
        self._left_bytes += left - self._left.get(name, 0)
        self._left[name] = left
        if read.done:
            del self._left[name]
        self._report(name)

    def _forget_gone(self, listed: set[str]) -> None:
        """Handles files that were read and no longer exist.

        Raises:
            InputGone: A file was read in part, and ``gone`` is ``error``.
        """
        missing = [name for name in sorted(self._read) if name not in listed]
        for name in missing:
            if self._read[name].done:
                continue
            if self._gone == "error":
                raise gone(name, self._read[name])
            _log.warning("a file that was read in part no longer exists", source=self.name, file=name)
            self._forget(name)
        for name in [name for name in missing if name in self._read][: max(0, len(self._read) - REMEMBERED_MAX)]:
            self._forget(name)

    def _forget(self, name: str) -> None:
        del self._read[name]
        self.state.delete(_PREFIX + name)


def _chosen(name: str, path: str, given: Any) -> FileFormat:
    if isinstance(given, (CsvFormat, JsonLines, ParquetFormat)):
        return given
    found = format_of(path) if given is None else FORMATS[given][0] if given in FORMATS else None
    if found is None:
        seen = path if given is None else given
        expected = "`csv`, `jsonl`, `parquet`, or a path that ends with `.csv`, `.jsonl` or `.parquet`; compressed "
        raise option_invalid(name, "format", seen, f"{expected}files are not read")
    return found
