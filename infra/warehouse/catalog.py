"""The Iceberg catalog for readers without a JVM: pyiceberg on the same SQL catalog that Spark writes.

Invariants:
    - The catalog of the settings is the one that is opened; nobody builds an address of his own.
    - A new catalog is made only where the warehouse holds no tables: a lost one is never replaced in silence.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from holdfast.infra.paths import Paths
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.warehouse.errors import (
    CatalogLost,
    CatalogUnavailable,
    CatalogUnusable,
    StorageUnavailable,
    TableUnknown,
)
from holdfast.infra.warehouse.properties import CATALOG, pyiceberg_properties, warehouse_location

__all__ = [
    "CATALOG",
    "TableUnknown",
    "load_table",
    "open_catalog",
    "prepare_catalog",
    "read_table",
    "register_tables",
    "tables_on_disk",
]

#: Two that make the same catalog at once: so often is it tried.
_RACES_MAX = 5
#: So many characters of a database's answer are shown.
SAID_MAX = 400


def open_catalog(where: Settings | Paths) -> SqlCatalog:
    """The catalog of the settings; of a home folder's, with the environment's settings.

    Raises:
        CatalogUnavailable: It can't be reached, or is locked.
        CatalogUnusable: It is there, and is no catalog, or refuses this user.
    """
    settings = _settings(where)
    with _told(settings):
        if settings.catalog.startswith("sqlite:"):
            _sqlite_file(settings).parent.mkdir(parents=True, exist_ok=True)
        for left in reversed(range(_RACES_MAX)):
            try:
                catalog = SqlCatalog(CATALOG, **pyiceberg_properties(settings))
                catalog.list_namespaces()
                return catalog
            except Exception as failure:
                if not left or not re.search(r"already exists|duplicate key", str(failure)):
                    raise
        raise AssertionError("unreachable")


def prepare_catalog(settings: Settings) -> None:
    """Make sure, before a JVM is started, that the catalog is there, ours, and complete.

    Raises:
        CatalogUnavailable: It can't be reached, or is locked.
        CatalogUnusable: It is there, and is no catalog, or refuses this user.
        CatalogLost: It knows nothing of the tables that the warehouse holds.
    """
    catalog = open_catalog(settings)
    with _told(settings):
        if catalog.list_namespaces():
            return
    refuse_lost(settings)


def refuse_lost(settings: Settings) -> None:
    """Of a catalog that knows no table: refuse it where the warehouse holds some.

    Raises:
        CatalogLost: It does.
        StorageUnavailable: The files can't be listed.
    """
    lost = tables_on_disk(settings)
    if lost:
        raise CatalogLost(
            f"The catalog {settings.catalog} knows no table, but {settings.warehouse_store} holds {len(lost)}: "
            f"{', '.join(sorted(lost)[:5])}. A new catalog would begin them anew, beside what is there.",
            action="Put the catalog's database back from its backup, correct HOLDFAST_WAREHOUSE__CATALOG_URL, or make "
            "the catalog know them again by `holdfast warehouse register`. If they are not needed, move them away.",
            catalog=settings.catalog,
            tables=len(lost),
        )


def register_tables(settings: Settings) -> dict[str, str]:
    """Make the catalog know the tables that the warehouse holds and it does not: table -> its metadata file.

    The newest metadata file of each is taken. What a writer left that died just then is no harm: only audited
    versions are ever on a table's main branch.

    Raises:
        CatalogUnavailable: It can't be reached, or is locked.
        CatalogUnusable: It is there, and is no catalog, or refuses this user.
    """
    catalog = open_catalog(settings)
    registered = {}
    with _told(settings):
        for name, location in sorted(tables_on_disk(settings).items()):
            namespace, table = name.split(".", 1)
            catalog.create_namespace_if_not_exists(namespace)
            if not catalog.table_exists((namespace, table)):
                catalog.register_table((namespace, table), location)
                registered[name] = location
    return registered


def tables_on_disk(settings: Settings) -> dict[str, str]:
    """``namespace.table`` of every table whose files the warehouse holds -> its newest metadata file.

    Raises:
        StorageUnavailable: The files can't be listed.
    """
    from pyarrow.fs import FileSelector  # quick to load only where it is loaded already
    from pyiceberg.io.pyarrow import PyArrowFileIO

    location = warehouse_location(settings)
    files = PyArrowFileIO(pyiceberg_properties(settings))
    scheme, host, root = files.parse_location(location, files.properties)
    newest: dict[str, tuple[int, str]] = {}
    try:
        found = files.fs_by_scheme(scheme, host).get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
    except OSError as failure:
        raise StorageUnavailable(
            f"The warehouse's files at {location} can't be listed: {str(failure).splitlines()[0][:300]}.",
            action="See to it that they can be reached from here; docs/warehouse-storage.md has the settings.",
            location=location,
        ) from failure
    for one in found:
        below = one.path.removeprefix(root.rstrip("/") + "/")
        named = re.fullmatch(r"([^/]+)/([^/]+)/metadata/(\d+)-[^/]+\.metadata\.json", below)
        if named:
            table = f"{named[1]}.{named[2]}"
            newest[table] = max(newest.get(table, (-1, "")), (int(named[3]), f"{location}/{below}"))
    return {table: where for table, (_, where) in newest.items() if not _is_view(files, where)}


def _is_view(files: Any, location: str) -> bool:
    """Whether a metadata file is that of a view, which is made again with the next snapshot of its table."""
    with files.new_input(location).open() as opened:
        said = opened.read()
    return b'"view-uuid"' in (gzip.decompress(said) if location.endswith(".gz.metadata.json") else said)


def read_table(where: Settings | Paths, namespace: str, table: str, *, tag: str | None = None) -> Any:
    """A table's content as a ``pyarrow.Table``; with ``tag``, as of that snapshot.

    Raises:
        TableUnknown: The table or the tag is not there.
        CatalogUnavailable: The catalog can't be reached, or is locked.
        CatalogUnusable: The catalog is no catalog, or refuses this user.
    """
    name, loaded = f"{namespace}.{table}", load_table(where, namespace, table)
    if tag is None:
        return loaded.scan().to_arrow()
    reference = loaded.metadata.refs.get(tag)
    if reference is None:
        raise TableUnknown(
            f"Table {name} has no tag {tag}; it has {', '.join(sorted(loaded.metadata.refs))}.",
            action="Name one of its tags.",
            table=name,
            tag=tag,
        )
    return loaded.scan(snapshot_id=reference.snapshot_id).to_arrow()


def load_table(where: Settings | Paths, namespace: str, table: str) -> Table:
    """A table as the catalog knows it now.

    Raises:
        TableUnknown: The table is not there.
        CatalogUnavailable: The catalog can't be reached, or is locked.
        CatalogUnusable: The catalog is no catalog, or refuses this user.
    """
    settings = _settings(where)
    name = f"{namespace}.{table}"
    if settings.catalog.startswith("sqlite:") and not _sqlite_file(settings).exists():
        refuse_lost(settings)
        raise TableUnknown(
            f"The warehouse below {settings.paths.warehouse} has no tables yet, so no {name}.",
            action="Materialise its snapshot asset first.",
            table=name,
        )
    try:
        with _told(settings):
            return open_catalog(settings).load_table((namespace, table))
    except (NoSuchTableError, NoSuchNamespaceError) as failure:
        prepare_catalog(settings)
        raise TableUnknown(
            f"The warehouse has no table {name}.", action="Materialise its snapshot asset first.", table=name
        ) from failure


def _settings(where: Settings | Paths) -> Settings:
    return where if isinstance(where, Settings) else load_settings(home=where.home)


def _sqlite_file(settings: Settings) -> Path:
    return Path(settings.catalog.removeprefix("sqlite:///"))


@contextmanager
def _told(settings: Settings) -> Iterator[None]:
    """Say in one sentence what the catalog's database answered."""
    try:
        yield
    except Exception as failure:
        if not type(failure).__module__.startswith(("sqlalchemy", "sqlite3", "psycopg")):
            raise
        said = " ".join(str(getattr(failure, "orig", None) or failure).split())[:SAID_MAX]
        kind, action = _verdict(said)
        raise kind(
            f"The warehouse's catalog {settings.catalog} can't be used: {said.rstrip('.')}.",
            action=action,
            catalog=settings.catalog,
        ) from None  # its text may hold the whole address


def _verdict(said: str) -> tuple[type[CatalogUnavailable | CatalogUnusable], str]:
    for pattern, kind, action in _VERDICTS:
        if re.search(pattern, said, re.IGNORECASE):
            return kind, action
    return CatalogUnusable, "Check HOLDFAST_WAREHOUSE__CATALOG_URL and the database that it names."


_VERDICTS: tuple[tuple[str, type[CatalogUnavailable | CatalogUnusable], str], ...] = (
    (
        "locked",
        CatalogUnavailable,
        "Another process holds it (a snapshot run, a backup, a database browser): let it end, then run this again.",
    ),
    (
        "password authentication|no password|no pg_hba",
        CatalogUnusable,
        "Correct HOLDFAST_WAREHOUSE__CATALOG_USER and HOLDFAST_WAREHOUSE__CATALOG_PASSWORD.",
    ),
    (
        'database ".*" does not exist',
        CatalogUnusable,
        "Create that database, or correct HOLDFAST_WAREHOUSE__CATALOG_URL.",
    ),
    ("permission denied", CatalogUnusable, "Give the catalog's user the right to read and write its tables."),
    (
        "not a database|malformed|no such column|does not exist|UndefinedColumn|has no column",
        CatalogUnusable,
        "It is of another format: name another database by HOLDFAST_WAREHOUSE__CATALOG_URL, or put this one back "
        "from its backup; nothing in it was changed.",
    ),
    (
        "readonly|unable to open|full|disk I/O",
        CatalogUnusable,
        "See to it that this user can write the file and its folder, and that there is room on the disk.",
    ),
    (
        "refused|timeout|timed out|could not|server closed|terminat|starting up|too many",
        CatalogUnavailable,
        "See to it that the database runs and can be reached from here, then run this again.",
    ),
)
