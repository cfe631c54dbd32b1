"""Reads the rows of CSV, JSON lines and Parquet files from a position on.

The position of a text file is a byte offset. The position of a Parquet file is a number of rows.

Invariants:
    - A reader takes nothing from behind the row that it yields: the position of a row is exactly its end.
    - A line has at most ``LINE_BYTES_MAX`` bytes, so a file without line ends does not fill the memory.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, cast

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.installation import naming_extras
from holdfast.infra.system.json_file import JSON_FAILURES

#: Maximum bytes of a line of a text file.
LINE_BYTES_MAX = 16 << 20
_READ_BYTES = 1 << 20
#: Rows that are read from a Parquet file at a time.
_PARQUET_ROWS = 1_000
_BOM = codecs.BOM_UTF8


class RowUnreadable(HoldfastError):
    """A row of a file does not have the file's format. Fields: ``file``, ``at`` (the position of the row)."""


class Row(NamedTuple):
    """A row of a file.

    Attributes:
        value: The value of the row; ``UNFINISHED`` if the file ends in the middle of the row.
        end: The position behind the row.
        raw: The bytes of the row in a text file. Empty for a Parquet file.
        complete: Whether the row ends with a line end. Without one, its writer may not have finished it.
    """

    value: Any
    end: int
    raw: bytes = b""
    complete: bool = True


#: Stands for the value of a row that can't be read, because the file ends in its middle.
UNFINISHED = object()


#: Reads the rows of an opened file from a position on. The text is the name of the file, for errors.
RowReader = Callable[[IO[bytes], int, str], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """Reads CSV files. The value of each message is a dict with the texts of the row.

    Args:
        delimiter: The character between two fields.
        quote: The character around fields with delimiters or line ends.
        encoding: The encoding of the text, in which a line end is one byte.
        columns: The names of the columns, for files without a header; None means that the first row is the header.
    """

    delimiter: str = ","
    quote: str = '"'
    encoding: str = "utf-8"
    columns: Sequence[str] | None = None

    def rows(self, file: IO[bytes], start: int, name: str) -> Iterator[Row]:
        """Yields the rows from a byte offset on. Raises RowUnreadable."""
        columns = self.columns
        if columns is None:
            header = next(self._fields(file, 0, name), None)
            if header is None or not header.complete:
                return
            columns, start = header.value, max(start, header.end)
            if len(set(columns)) < len(columns):
                raise _unreadable(name, 0, "the header names a column twice", "Correct the header.")
        begin = start
        for row in self._fields(file, start, name):
            if row.value is UNFINISHED or (not row.complete and len(row.value) != len(columns)):
                yield Row(UNFINISHED, begin, complete=False)
                return
            if len(row.value) != len(columns):
                seen = f"the row has {len(row.value)} fields, and the file has {len(columns)} columns"
                raise _unreadable(name, begin, seen)
            begin = row.end
            yield row._replace(value=dict(zip(columns, row.value, strict=True)))

    def _fields(self, file: IO[bytes], start: int, name: str) -> Iterator[Row]:
        lines = _CountedLines(file, start, name, self.encoding)
        reader = csv.reader(lines, delimiter=self.delimiter, quotechar=self.quote, strict=True)
        while True:
            begin, lines.taken = lines.at, b""
            try:
                fields = next(reader, None)
            except csv.Error as failure:
                if lines.ended:  # The end of the file is inside quotes: the writer may still be writing the row.
                    yield Row(UNFINISHED, begin, complete=False)
                    return
                raise _unreadable(name, begin, str(failure)) from failure
            if fields is None:
                return
            if fields:
                yield Row(fields, lines.at, lines.taken, lines.complete)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Reads files with one JSON value in each line. Empty lines are skipped."""

    def rows(self, file: IO[bytes], start: int, name: str) -> Iterator[Row]:
        """Yields the values from a byte offset on. Raises RowUnreadable."""
        at = start
        for line in _lines(file, start, name):
            begin, at = at, at + len(line)
            text = line.removeprefix(_BOM) if begin == 0 else line
            if not text.strip():
                continue
            complete = line.endswith(b"\n")
            try:
                value = msgspec.json.decode(text)
            except JSON_FAILURES as failure:
                if not complete:
                    yield Row(UNFINISHED, begin, complete=False)
                    return
                raise _unreadable(name, begin, f"the line is no JSON ({failure})") from failure
            yield Row(value, at, line, complete)


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """Reads Parquet files. The value of each message is a dict with the Python values of the row."""

    def rows(self, file: IO[bytes], start: int, name: str) -> Iterator[Row]:
        """Yields the rows from a row number on. Raises RowUnreadable."""
        with naming_extras():
            import pyarrow
            import pyarrow.parquet
        try:
            parquet = pyarrow.parquet.ParquetFile(file)
            number = 0
            for group in range(parquet.num_row_groups):
                size = parquet.metadata.row_group(group).num_rows
                if number + size <= start:
                    number += size
                    continue
                for batch in parquet.iter_batches(_PARQUET_ROWS, row_groups=[group]):
                    skipped = min(max(0, start - number), batch.num_rows)
                    number += skipped
                    for value in _exact(batch.slice(skipped), pyarrow).to_pylist():
                        number += 1
                        yield Row(value, number)
        except (pyarrow.ArrowException, ValueError) as failure:
            raise _unreadable(
                name, start, f"pyarrow refuses the file ({failure})", "Write the file again."
            ) from failure


def _exact(batch: Any, pyarrow: Any) -> Any:
    """Turns times in nanoseconds into ISO texts, because Python's times have microseconds only."""
    columns = []
    for column in batch.columns:
        if pyarrow.types.is_timestamp(column.type) and column.type.unit == "ns":
            texts = [None if each is None else each.replace(" ", "T") for each in column.cast("string").to_pylist()]
            columns.append(pyarrow.array(texts, "string"))
        else:
            columns.append(column)
    return pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


#: Name of a format -> its reader, and the endings of file names that select it.
FORMATS: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "csv": (CsvFormat(), (".csv",)),
    "jsonl": (JsonLines(), (".jsonl", ".ndjson")),
    "parquet": (ParquetFormat(), (".parquet", ".pq")),
}
FileFormat = CsvFormat | JsonLines | ParquetFormat


def format_of(path: str) -> FileFormat | None:
    """Returns the format for the ending of a path or pattern; None for an unknown ending."""
    found = (given for given, endings in FORMATS.values() if path.lower().endswith(endings))
    return cast(FileFormat | None, next(found, None))


class _CountedLines:
    """The decoded lines of a file, with the byte offset behind the last line that was taken."""

    def __init__(self, file: IO[bytes], start: int, name: str, encoding: str) -> None:
        self._lines, self._name, self._encoding = _lines(file, start, name), name, encoding
        self.at = start
        #: The bytes of the lines since the reader last set this to nothing.
        self.taken = b""
        self.complete, self.ended = True, False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self.ended = True
            raise StopIteration
        begin = self.at
        self.at += len(line)
        self.taken += line
        self.complete = line.endswith(b"\n")
        try:
            return (line.removeprefix(_BOM) if begin == 0 else line).decode(self._encoding)
        except UnicodeDecodeError as failure:
            action = "Correct the file, or the `encoding` of its format."
            raise _unreadable(self._name, begin, str(failure), action) from failure


def _lines(file: IO[bytes], start: int, name: str) -> Iterator[bytes]:
    file.seek(start)
    rest, at = b"", start
    while chunk := file.read(_READ_BYTES):
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            at += len(line) + 1
            yield line + b"\n"
        if len(rest) > LINE_BYTES_MAX:
            raise _unreadable(name, at, f"a line has more than {LINE_BYTES_MAX:,} bytes", "Write shorter lines.")
    if rest:
        yield rest


def _unreadable(name: str, at: int, seen: str, action: str = "") -> RowUnreadable:
    return RowUnreadable(
        f"File {name} can't be read from position {at:,} on: {seen}.",
        action=action or f"Correct the row at byte {at}; leave what is before it as it is.",
        file=name,
        at=at,
    )
