"""Lists the warehouse's files, reads metadata files, and makes the error about unreachable files."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.errors import StorageUnavailable
from holdfast.infra.warehouse.properties import pyiceberg_properties


def list_files(settings: Settings, location: str) -> tuple[str, ...]:
    """Sorted paths of all files in the folder at a URL, relative to the URL; empty if there are no files.

    Raises:
        StorageUnavailable: The files can't be listed.
    """
    from pyarrow.fs import FileSelector  # imported late, because pyarrow and pyiceberg are slow to import
    from pyiceberg.io.pyarrow import PyArrowFileIO

    files = PyArrowFileIO(pyiceberg_properties(settings))
    scheme, host, root = files.parse_location(location, files.properties)
    try:
        found = files.fs_by_scheme(scheme, host).get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
    except OSError as failure:
        raise unreachable(location, "listed", failure) from failure
    below = root.rstrip("/") + "/"
    return tuple(sorted(one.path.removeprefix(below) for one in found if one.is_file))


def metadata_file(files: Any, location: str) -> bytes:
    """The content of a metadata file, unpacked if it is gzipped; ``files`` is pyiceberg's ``FileIO``."""
    with files.new_input(location).open() as opened:
        content: bytes = opened.read()
    return gzip.decompress(content) if location.endswith(".gz.metadata.json") else content


def unreachable(location: str, done: str, failure: OSError) -> StorageUnavailable:
    """The error for files at ``location`` that can't be accessed; ``done`` is ``listed``, ``read`` or ``deleted``."""
    return StorageUnavailable(
        f"The warehouse's files at {location} can't be {done}: {str(failure).splitlines()[0][:300]}.",
        action="Check that this machine reaches them; docs/warehouse-storage.md has the settings.",
        location=location,
    )


def rows_in_files(
    settings: Settings, location: str, ranges: Sequence[tuple[bytes, bytes]], columns: Sequence[str]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields the name of each Parquet file below a URL, with its rows whose column ``key`` is in one of the ranges.

    The files are read as they are: deleted rows count, and so do files that no version of the table uses. A range is
    (first, end). Files without the column, and columns that a file lacks, are left out.

    Raises:
        StorageUnavailable: The files can't be listed or read.
    """
    import pyarrow.parquet as pq  # imported late, because pyarrow and pyiceberg are slow to import
    from pyiceberg.io.pyarrow import PyArrowFileIO

    files = PyArrowFileIO(pyiceberg_properties(settings))
    scheme, host, root = files.parse_location(location, files.properties)
    store = files.fs_by_scheme(scheme, host)
    wanted = [[("key", ">=", first), ("key", "<", end)] for first, end in ranges]
    for below in list_files(settings, location):
        if not below.endswith(".parquet"):
            continue
        try:
            path = f"{root.rstrip('/')}/{below}"
            names = pq.read_schema(path, filesystem=store).names
            if "key" in names:
                there = [name for name in columns if name in names]
                found = pq.read_table(path, columns=there, filters=wanted, filesystem=store, partitioning=None)
                yield below.rpartition("/")[2], found.to_pylist()
        except OSError as failure:
            raise unreachable(location, "read", failure) from failure
