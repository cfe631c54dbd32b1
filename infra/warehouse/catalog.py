"""Opens the Iceberg catalog without a JVM: pyiceberg reads the SQL catalog that Spark writes.

Every function raises CatalogUnavailable if the catalog can't be reached or is locked. It raises CatalogUnusable if the
database is no catalog or refuses this user, and StorageUnavailable if the warehouse's files can't be listed.

Invariants:
    - A new catalog is used only if the warehouse has no tables. So a lost catalog is never replaced silently.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from holdfast.infra.masking import masked
from holdfast.infra.paths import Paths
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.system.process import lock_holders
from holdfast.infra.warehouse import properties
from holdfast.infra.warehouse.errors import CatalogLost, CatalogUnavailable, CatalogUnusable, TableUnknown, no_table
from holdfast.infra.warehouse.properties import CATALOG, pyiceberg_properties, warehouse_location
from holdfast.infra.warehouse.table_files import list_files, metadata_file

__all__ = ["CATALOG", "TableUnknown"]

#: Maximum number of attempts to create a catalog, because another process may create it at the same time.
_RACES_MAX = 5
#: Maximum number of characters of a database's error that a message shows.
ANSWER_MAX = 400


def open_catalog(where: Settings | Paths) -> SqlCatalog:
    """Open the catalog; create it if it is absent.

    ``where`` is the settings, or a home folder, for which the settings are read from the environment.
    """
    settings = _settings(where)
    with short_errors(settings.catalog):
        if settings.catalog.startswith("sqlite:"):
            file = _sqlite_file(settings.catalog)
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.exists():
                # If the catalog's database is locked, this query waits. Otherwise pyiceberg would query the database
                # twice, and wait for the lock each time.
                with closing(sqlite3.connect(file, timeout=properties.PATIENCE_S)) as asked:
                    asked.execute("SELECT 1 FROM sqlite_master LIMIT 1")
        for left in reversed(range(_RACES_MAX)):
            try:
                catalog = SqlCatalog(CATALOG, **pyiceberg_properties(settings))
                catalog.list_namespaces()
                return catalog
            except Exception as failure:
                if not left or not re.search(r"already exists|duplicate key", str(failure)):
                    raise
        raise AssertionError("unreachable")


def prepare_catalog(settings: Settings) -> SqlCatalog:
    """Open the catalog and check that it is not lost; call this before a JVM is started. Creates a new catalog.

    Raises:
        CatalogLost: The catalog is empty, but the warehouse has files of tables.
    """
    catalog = open_catalog(settings)
    with short_errors(settings.catalog):
        if catalog.list_namespaces():
            return catalog
    _refuse_lost(settings)
    return catalog


def existing_catalog(settings: Settings, wanted: str = "a snapshot") -> SqlCatalog:
    """Like ``prepare_catalog``, but never creates a catalog. Errors quote ``wanted``, the name of the object to read.

    Raises:
        TableUnknown: There is no catalog and no table yet.
        CatalogLost: The catalog is absent or empty, but the warehouse has files of tables.
    """
    if settings.catalog.startswith("sqlite:") and not _sqlite_file(settings.catalog).exists():
        _refuse_lost(settings)
        raise TableUnknown(
            f"The catalog {settings.catalog} does not exist: the warehouse has no tables yet; expected {wanted}.",
            action="Materialise a snapshot first, or set `HOLDFAST_WAREHOUSE__CATALOG_URL` to a catalog with tables.",
        )
    return prepare_catalog(settings)


def _refuse_lost(settings: Settings) -> None:
    lost = tables_on_disk(settings)
    if lost:
        raise CatalogLost(
            f"The catalog {settings.catalog} has no tables, but {settings.warehouse_store} holds {len(lost)}: "
            f"{', '.join(sorted(lost)[:5])}. With an empty catalog, new tables would be written beside them.",
            action="Restore the catalog's database from its backup, correct `HOLDFAST_WAREHOUSE__CATALOG_URL`, or run "
            "`holdfast warehouse register` to register the tables. Move tables away that are not needed.",
            catalog=settings.catalog,
            tables=len(lost),
        )


def register_tables(settings: Settings) -> dict[str, str]:
    """Register tables whose files are in the warehouse but that the catalog lacks; returns table -> metadata file.

    The newest metadata file of each table is used. A metadata file from an unfinished write does no harm, because
    the main branch of a table contains only audited versions.
    """
    catalog = open_catalog(settings)
    registered = {}
    with short_errors(settings.catalog):
        for name, location in sorted(tables_on_disk(settings).items()):
            namespace, table = name.split(".", 1)
            catalog.create_namespace_if_not_exists(namespace)
            if not catalog.table_exists((namespace, table)):
                catalog.register_table((namespace, table), location)
                registered[name] = location
    return registered


def tables_on_disk(settings: Settings) -> dict[str, str]:
    """``namespace.table`` -> newest metadata file, for every table whose files are in the warehouse."""
    from pyiceberg.io.pyarrow import PyArrowFileIO  # imported late, because pyiceberg is slow to import

    location = warehouse_location(settings)
    newest: dict[str, tuple[int, str]] = {}
    for below in list_files(settings, location):
        named = re.fullmatch(r"([^/]+)/([^/]+)/metadata/(\d+)-[^/]+\.metadata\.json", below)
        if named:
            table = f"{named[1]}.{named[2]}"
            newest[table] = max(newest.get(table, (-1, "")), (int(named[3]), f"{location}/{below}"))
    files = PyArrowFileIO(pyiceberg_properties(settings))
    return {table: where for table, (_, where) in newest.items() if not _is_view(files, where)}


def _is_view(files: Any, location: str) -> bool:
    """Whether a metadata file belongs to a view. Views are not registered; the next snapshot creates them again."""
    return b'"view-uuid"' in metadata_file(files, location)


def read_table(where: Settings | Paths, namespace: str, table: str, *, tag: str | None = None) -> Any:
    """The content of a table as a ``pyarrow.Table``: the current version, or the version with ``tag``.

    Raises:
        TableUnknown: The catalog lacks the table, or the table lacks the tag.
    """
    loaded = load_table(where, namespace, table)
    return loaded.scan(snapshot_id=None if tag is None else snapshot_at(loaded, tag).snapshot_id).to_arrow()


def snapshot_at(table: Table, tag: str | None) -> Snapshot:
    """The Iceberg snapshot with this tag; the current snapshot for None.

    Raises:
        TableUnknown: The table has no version yet, or lacks the tag.
    """
    found = table.current_snapshot() if tag is None else table.snapshot_by_name(tag)
    if found is not None:
        return found
    name = ".".join(table.name())
    if tag is None:
        raise TableUnknown(
            f"Table {name} has no version yet.", action="Materialise its snapshot asset first.", table=name
        )
    tags = ", ".join(sorted(table.metadata.refs)) or "none"
    raise TableUnknown(
        f"Table {name} has no tag {tag}; it has {tags}.", action="Choose one of these tags.", table=name, tag=tag
    )


def load_table(where: Settings | Paths, namespace: str, table: str) -> Table:
    """The table in its present version, as pyiceberg's object.

    Raises:
        TableUnknown: The catalog lacks the table.
        CatalogLost: The catalog is absent or empty, but the warehouse has files of tables.
    """
    settings, name = _settings(where), f"{namespace}.{table}"
    catalog = existing_catalog(settings, name)
    try:
        with short_errors(settings.catalog):
            return catalog.load_table((namespace, table))
    except (NoSuchTableError, NoSuchNamespaceError) as failure:
        raise no_table(name) from failure


def _settings(where: Settings | Paths) -> Settings:
    return where if isinstance(where, Settings) else load_settings(home=where.home)


def locked_by(catalog: str) -> str:
    """Sentences for an error: which process holds the catalog's lock (if known), and that nothing is lost."""
    files = []
    if catalog.startswith("sqlite:"):
        # Both files are checked, because in WAL mode the locks are on the file `-shm`.
        file = _sqlite_file(catalog)
        files = [file, file.with_name(f"{file.name}-shm")]
    holders = [holder for file in files for holder in lock_holders(file)]
    by = f"Held by {', '.join(dict.fromkeys(holders))}." if holders else "Which process holds the lock is not known."
    return f"{by} Nothing is lost: published versions are as they were."


def _sqlite_file(catalog: str) -> Path:
    return Path(catalog.removeprefix("sqlite:///"))


@contextmanager
def short_errors(catalog: str) -> Iterator[None]:
    """Context manager that replaces errors of the catalog's database by CatalogUnavailable or CatalogUnusable.

    ``catalog`` is the URL of the database, without a password.
    """
    try:
        yield
    except Exception as failure:
        if not type(failure).__module__.startswith(("sqlalchemy", "sqlite3", "psycopg")):
            raise
        answer = masked(" ".join(str(getattr(failure, "orig", None) or failure).split()))[:ANSWER_MAX]
        kind, action = _verdict(answer)
        locked = f" {locked_by(catalog)}" if "locked" in answer else ""
        raise kind(
            f"The warehouse's catalog {catalog} can't be used: {answer.rstrip('.')}.{locked}",
            action=action,
            catalog=catalog,
        ) from None  # The cause is left out, because its text may contain the password.


def _verdict(answer: str) -> tuple[type[CatalogUnavailable | CatalogUnusable], str]:
    fitting = ((kind, action) for pattern, kind, action in _VERDICTS if re.search(pattern, answer, re.IGNORECASE))
    return next(fitting, (CatalogUnusable, "Check `HOLDFAST_WAREHOUSE__CATALOG_URL` and its database."))


_VERDICTS: tuple[tuple[str, type[CatalogUnavailable | CatalogUnusable], str], ...] = (
    (
        "locked",
        CatalogUnavailable,
        "Let the process that locks it end (a snapshot run, a backup, a database browser), then run this again.",
    ),
    (
        "password authentication|no password|no pg_hba",
        CatalogUnusable,
        "Correct `HOLDFAST_WAREHOUSE__CATALOG_USER` and `HOLDFAST_WAREHOUSE__CATALOG_PASSWORD`.",
    ),
    (
        'database ".*" does not exist',
        CatalogUnusable,
        "Create that database, or correct `HOLDFAST_WAREHOUSE__CATALOG_URL`.",
    ),
    ("permission denied", CatalogUnusable, "Give the catalog's user the right to read and write the catalog's tables."),
    (
        "not a database|malformed|no such column|does not exist|UndefinedColumn|has no column",
        CatalogUnusable,
        "Set `HOLDFAST_WAREHOUSE__CATALOG_URL` to another database, or restore this one from its backup: it has "
        "another format, and nothing in it was changed.",
    ),
    (
        "readonly|unable to open|full|disk I/O",
        CatalogUnusable,
        "Check that this user can write the file and its folder, and that the disk has room.",
    ),
    (
        "refused|timeout|timed out|could not|server closed|terminat|starting up|too many",
        CatalogUnavailable,
        "Check that the database runs and that this machine reaches it, then run this again.",
    ),
)
