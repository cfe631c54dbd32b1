"""A table of the catalog looked at, and taken out of it together with its files.

Invariants:
    - Files are deleted by a list that was made while the table was still known: a table that is made anew under the
      same name never loses one.
    - Only files in the table's own place are listed: ``<warehouse>/<namespace>/<table>``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.catalog import open_catalog
from holdfast.infra.warehouse.errors import StorageUnavailable
from holdfast.infra.warehouse.properties import pyiceberg_properties, warehouse_location


class TableElsewhere(HoldfastError):
    """A table's files are not where tables of this warehouse have theirs."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table as it is now.

    Args:
        uuid: Which table it is; one that is made anew has another.
        metadata: Its metadata file: another one after each commit.
        snapshot: Its current snapshot's id; None where it has none.
        rows: How many rows that snapshot says it has; None where it does not say.
        size_bytes: Of that snapshot's data files; None where it does not say.
    """

    uuid: str
    metadata: str
    snapshot: int | None
    rows: int | None
    size_bytes: int | None


def table_facts(settings: Settings, name: str) -> TableFacts | None:
    """What ``namespace.table`` is now; None where there is none.

    Raises:
        HoldfastError: The catalog can't be opened.
    """
    table = _loaded(settings, name)
    if table is None:
        return None
    current = table.current_snapshot()
    said = {} if current is None or current.summary is None else dict(current.summary.additional_properties)
    rows = said.get("total-records")
    gone = int(said.get("total-position-deletes", 0))
    size = said.get("total-files-size")
    return TableFacts(
        uuid=str(table.metadata.table_uuid),
        metadata=table.metadata_location,
        snapshot=None if current is None else current.snapshot_id,
        rows=None if rows is None else int(rows) - gone,
        size_bytes=None if size is None else int(size),
    )


def table_files(settings: Settings, name: str) -> tuple[str, ...]:
    """Every file in the place of a table, each as its URL.

    Raises:
        TableElsewhere: The table has another place than tables of this warehouse have.
        StorageUnavailable: The files can't be listed.
    """
    from pyarrow.fs import FileSelector  # quick to load only where it is loaded already

    table = _loaded(settings, name)
    if table is None:
        return ()
    location, expected = table.location().rstrip("/"), _place_of(settings, name)
    if _plain(location) != _plain(expected):
        raise TableElsewhere(
            f"Table {name} has its files at {location}, expected {expected}: they may be another table's, too.",
            action="Drop it by hand, with an engine that you trust with its files.",
            table=name,
            seen=location,
            expected=expected,
        )
    files = _files(settings)
    scheme, host, root = files.parse_location(expected, files.properties)
    try:
        found = files.fs_by_scheme(scheme, host).get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
    except OSError as failure:
        raise _unavailable(expected, "listed", failure) from failure
    below = root.rstrip("/") + "/"
    return tuple(sorted(f"{expected}/{one.path.removeprefix(below)}" for one in found if one.is_file))


def drop_table(settings: Settings, name: str, uuid: str) -> bool:
    """Take that very table out of the catalog; False where it is gone, or another one has its name. Files stay."""
    table = _loaded(settings, name)
    if table is None or str(table.metadata.table_uuid) != uuid:
        return False
    try:
        open_catalog(settings).drop_table(tuple(name.split(".")))
    except NoSuchTableError:
        return False
    return True


def delete_files(settings: Settings, name: str, urls: Sequence[str]) -> None:
    """Delete these files of a table's place, and the folders of it that are empty then; what is gone is no error.

    Raises:
        StorageUnavailable: One can't be deleted.
    """
    files, folders = _files(settings), set()
    _, _, place = files.parse_location(_place_of(settings, name), files.properties)
    for url in urls:
        scheme, host, path = files.parse_location(url, files.properties)
        if scheme == "file":
            folders |= {str(folder) for folder in PurePath(path).parents if folder.is_relative_to(place)}
        try:
            files.fs_by_scheme(scheme, host).delete_file(path)
        except FileNotFoundError:
            continue
        except OSError as failure:
            raise _unavailable(url, "deleted", failure) from failure
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):  # it has other files, or is gone
            Path(folder).rmdir()


def _place_of(settings: Settings, name: str) -> str:
    return f"{warehouse_location(settings)}/{name.replace('.', '/')}"


def _loaded(settings: Settings, name: str) -> Any:
    try:
        return open_catalog(settings).load_table(tuple(name.split(".")))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def _files(settings: Settings) -> Any:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return PyArrowFileIO(pyiceberg_properties(settings))


def _plain(location: str) -> str:
    return location.removeprefix("file://").removeprefix("file:").rstrip("/")


def _unavailable(what: str, done: str, failure: OSError) -> StorageUnavailable:
    return StorageUnavailable(
        f"{what} can't be {done}: {str(failure).splitlines()[0][:300]}.",
        action="See to it that it can be reached from here; docs/warehouse-storage.md has the settings.",
        location=what,
    )
