"""Lists the warehouse's files, reads metadata files, and makes the error about unreachable files."""

from __future__ import annotations

import gzip
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
