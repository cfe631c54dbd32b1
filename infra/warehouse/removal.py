"""Removes a table from the catalog, and then deletes the table's files.

Invariants:
    - The list of files to delete is made before the table is removed from the catalog. So a new table with the same
      name loses no file.
    - Only files in the folder ``<warehouse>/<namespace>/<table>`` are listed and deleted.
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
from holdfast.infra.warehouse.properties import pyiceberg_properties, warehouse_location
from holdfast.infra.warehouse.table_files import list_files, unreachable


class TableElsewhere(HoldfastError):
    """The files of a table are not in the table's folder ``<warehouse>/<namespace>/<table>``."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts about a table in its present version."""

    #: Identity of the table; a new table with the same name gets another identity.
    uuid: str
    #: Path of the newest metadata file, which changes with each commit.
    metadata: str
    #: Id of the current Iceberg snapshot; None if the table is empty.
    snapshot: int | None
    #: Number of rows, from the snapshot's summary. The next field is the bytes of the data files. A number that the
    #: summary lacks is None.
    rows: int | None
    size_bytes: int | None


def table_facts(settings: Settings, name: str) -> TableFacts | None:
    """The facts about the table ``namespace.table``; None if the catalog lacks the table."""
    table = _loaded(settings, name)
    if table is None:
        return None
    current = table.current_snapshot()
    summary = {} if current is None or current.summary is None else dict(current.summary.additional_properties)
    rows = summary.get("total-records")
    deleted = int(summary.get("total-position-deletes", 0))
    size = summary.get("total-files-size")
    return TableFacts(
        uuid=str(table.metadata.table_uuid),
        metadata=table.metadata_location,
        snapshot=None if current is None else current.snapshot_id,
        rows=None if rows is None else int(rows) - deleted,
        size_bytes=None if size is None else int(size),
    )


def table_files(settings: Settings, name: str) -> tuple[str, ...]:
    """The URLs of all files in the folder of a table; empty if the catalog lacks the table.

    Raises:
        TableElsewhere: The table's files are in another folder.
        StorageUnavailable: The files can't be listed.
    """
    table = _loaded(settings, name)
    if table is None:
        return ()
    location, expected = table.location().rstrip("/"), _place_of(settings, name)
    if _plain(location) != _plain(expected):
        raise TableElsewhere(
            f"Table {name} has its files at {location}, expected {expected}. Another table may use them.",
            action="Drop the table with another engine, after you have checked who uses these files.",
            table=name,
            seen=location,
            expected=expected,
        )
    return tuple(f"{expected}/{file}" for file in list_files(settings, expected))


def drop_table(settings: Settings, name: str, uuid: str) -> bool:
    """Remove the table from the catalog if it has this uuid; returns False otherwise. The files are kept."""
    table = _loaded(settings, name)
    if table is None or str(table.metadata.table_uuid) != uuid:
        return False
    try:
        open_catalog(settings).drop_table(tuple(name.split(".")))
    except NoSuchTableError:
        return False
    return True


def delete_files(settings: Settings, name: str, urls: Sequence[str]) -> None:
    """Delete these files of a table, and folders that became empty; absent files are ignored.

    Raises:
        TableElsewhere: A file is not in the folder of the table; no file was deleted.
        StorageUnavailable: A file can't be deleted.
    """
    from pyiceberg.io.pyarrow import PyArrowFileIO  # imported late, because pyiceberg is slow to import

    files, folders = PyArrowFileIO(pyiceberg_properties(settings)), set()
    home_scheme, home_host, place = files.parse_location(_place_of(settings, name), files.properties)
    for url in urls:
        scheme, host, path = files.parse_location(url, files.properties)
        below = PurePath(path).is_relative_to(place) and ".." not in PurePath(path).parts
        if not below or PurePath(path) == PurePath(place) or (scheme, host) != (home_scheme, home_host):
            raise TableElsewhere(
                f"The file {url} is listed for deletion with table {name}, expected files below "
                f"{_place_of(settings, name)}.",
                action="Nothing was deleted. Find out who changed the record of that deletion in the archive.",
                table=name,
                seen=url,
            )
    for url in urls:
        scheme, host, path = files.parse_location(url, files.properties)
        if scheme == "file":
            folders |= {str(folder) for folder in PurePath(path).parents if folder.is_relative_to(place)}
        try:
            files.fs_by_scheme(scheme, host).delete_file(path)
        except FileNotFoundError:
            continue
        except OSError as failure:
            raise unreachable(url, "deleted", failure) from failure
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):  # `rmdir` fails if the folder has other files or is already deleted
            Path(folder).rmdir()


def _place_of(settings: Settings, name: str) -> str:
    return f"{warehouse_location(settings)}/{name.replace('.', '/')}"


def _loaded(settings: Settings, name: str) -> Any:
    try:
        return open_catalog(settings).load_table(tuple(name.split(".")))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def _plain(location: str) -> str:
    return location.removeprefix("file://").removeprefix("file:").rstrip("/")
