"""What a file source remembers of each file: how far the file was read, and marks that show a change of the file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import IO

import msgspec
import xxhash

from holdfast.infra.errors import HoldfastError
from holdfast.infra.storage.input_files import InputFile

FORMAT_VERSION = 1
#: Maximum bytes of a mark, and of the mark at the end of a Parquet file, which has the places of all its columns.
_MARK_BYTES, _FOOTER_BYTES = 4_096, 65_536


class InputChanged(HoldfastError):
    """A file that was read, or is being read, has changed. Nothing of it was read again. Fields: ``file``, ``at``."""


class InputShrank(InputChanged):
    """A file is shorter than the part of it that was read."""


class InputGone(HoldfastError):
    """A file was read in part, and no longer exists. Fields: ``file``, ``at``, ``size``."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The hash of some bytes of a file, which must stay the same."""

    begin: int
    size: int
    digest: str


class ReadFile(msgspec.Struct, frozen=True):
    """How far a file was read.

    Attributes:
        at: The position of the next row: a byte offset, or a number of rows.
        size: The bytes of the file when it was listed.
        stamp: Its stamp when it was listed.
        marks: Hashes of its head and of the last row that was read, or of the end of a Parquet file.
        done: Whether the file was read to its end at that size and stamp.
        open: Whether the last row that was read had no line end.
        format: The format version of this record.
    """

    at: int
    size: int
    stamp: str
    marks: tuple[Mark, ...]
    done: bool = False
    open: bool = False
    format: int = FORMAT_VERSION

    def is_same(self, listed: InputFile) -> bool:
        """Whether the file was read to its end, and its size and its stamp did not change since."""
        return self.done and bool(listed.stamp) and (listed.size, listed.stamp) == (self.size, self.stamp)


class Reading:
    """One pass through an opened file, from the position that was read before.

    Args:
        file: The opened file.
        listed: The file in the present listing.
        before: What is known of the file; None for a new file.
        text: Whether positions are byte offsets, and the file may grow.

    Raises:
        InputShrank: The file is shorter than the part that was read.
        InputChanged: The part that was read has changed; or a Parquet file has another size.
    """

    def __init__(self, file: IO[bytes], listed: InputFile, before: ReadFile | None, *, text: bool) -> None:
        self._text = text
        # The file may have grown since it was listed. An older stamp only leads to another look.
        listed = replace(listed, size=file.seek(0, os.SEEK_END))
        file.seek(0)
        self._head = _exactly(file, _MARK_BYTES)
        if before is not None and before.at:
            _check(before, file, listed, text=text)
            self.read = msgspec.structs.replace(before, size=listed.size, stamp=listed.stamp, done=False)
        else:
            marks = () if text else (_mark(file, 0, _MARK_BYTES), _mark(file, listed.size - _FOOTER_BYTES, listed.size))
            self.read = ReadFile(0, listed.size, listed.stamp, marks)

    def up_to(self, at: int, last: bytes, *, complete: bool = True) -> ReadFile:
        """Returns the record behind a row that ends at ``at``. ``last`` has the bytes of the row in a text file."""
        marks = self.read.marks
        if self._text:
            part, head = last[-_MARK_BYTES:], self._head[:at]
            marks = (Mark(0, len(head), _digest(head)), Mark(at - len(part), len(part), _digest(part)))
        self.read = msgspec.structs.replace(self.read, at=at, marks=marks, open=not complete)
        return self.read

    def ended(self) -> ReadFile:
        """Returns the record of a file that was read to its present end."""
        self.read = msgspec.structs.replace(self.read, done=True)
        return self.read


def _check(read: ReadFile, file: IO[bytes], listed: InputFile, *, text: bool) -> None:
    if text and listed.size < read.at:
        raise InputShrank(
            f"File {listed.name} has {listed.size:,} bytes, and {read.at:,} bytes of it were read. Expected a file "
            "that only grows. Nothing was read again.",
            action=_way_out(listed.name),
            file=listed.name,
            at=read.at,
        )
    if not text and listed.size != read.size:
        raise _changed(listed, read, f"it had {read.size:,} bytes, and has {listed.size:,}")
    for mark in read.marks:
        if _mark(file, mark.begin, mark.begin + mark.size) != mark:
            raise _changed(listed, read, f"bytes {mark.begin:,} to {mark.begin + mark.size:,} are others than before")
    if read.open and not _goes_on_with_a_line(file, read.at):
        raise _changed(listed, read, "its last row, which had no line end, was continued")


def gone(name: str, read: ReadFile) -> InputGone:
    """The error for a file that was read in part, and no longer exists."""
    return InputGone(
        f"File {name} was read up to position {read.at:,}, and no longer exists. It had {read.size:,} bytes.",
        action="Put the file back. If its other rows are not needed, set `gone='skip'` of the source.",
        file=name,
        at=read.at,
        size=read.size,
    )


def _changed(listed: InputFile, read: ReadFile, seen: str) -> InputChanged:
    return InputChanged(
        f"File {listed.name}, of which {read.at:,} bytes or rows were read, has changed: {seen}. Nothing was read "
        "again.",
        action=_way_out(listed.name),
        file=listed.name,
        at=read.at,
    )


def _way_out(name: str) -> str:
    return f"Put the former content of {name} back. If the new content is new data, give the file another name."


def _mark(file: IO[bytes], begin: int, end: int) -> Mark:
    begin = max(0, begin)
    file.seek(begin)
    found = _exactly(file, end - begin)
    return Mark(begin, len(found), _digest(found))


def _digest(found: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(found)


def _exactly(file: IO[bytes], size: int) -> bytes:
    pieces: list[bytes] = []
    while size and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _goes_on_with_a_line(file: IO[bytes], at: int) -> bool:
    file.seek(at)
    found = _exactly(file, 2)
    return found in (b"", b"\r") or found[:1] == b"\n" or found == b"\r\n"


def decoded(held: Sequence[tuple[str, object]], prefix: str) -> dict[str, ReadFile]:
    """Returns the records in the state of a source, by the names of the files."""
    return {key.removeprefix(prefix): msgspec.convert(value, ReadFile) for key, value in held}
