"""One SQL table of a sink: its statements, its columns, and what the errors of its database mean.

The module is imported only by programs with a ``SqlSink``, because SQLAlchemy imports slowly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    and_,
    bindparam,
    create_engine,
    delete,
    event,
    inspect,
    make_url,
    or_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, NoSuchTableError
from sqlalchemy.schema import CreateColumn, CreateTable
from sqlalchemy.types import TypeEngine

from holdfast.infra.errors import HoldfastError
from holdfast.infra.masking import shown_url
from holdfast.processors.engine.sinks.errors import SinkInvalid
from holdfast.processors.engine.sinks.sink import SinkBatch
from holdfast.processors.sinks.rows import OFFSET, PARTITION, TOPIC, Row
from holdfast.processors.sinks.sql_types import kinds_of, wider_type

#: The table with the process that owns each partition. All sinks of a schema share it.
OWNERS = "holdfast_sink_owners"
#: Maximum seconds of one statement, of one wait for a lock, and of a transaction whose worker is frozen. PostgreSQL
#: ends what takes longer, so that a worker that hangs does not hold the locks of its successor.
STATEMENT_S, LOCK_S, FROZEN_S = 25, 10, 20
#: Seconds until a connection attempt fails, and seconds that SQLite waits for its lock.
CONNECT_S = 5
#: Connections that end when the network does: libpq's settings of TCP, in seconds and milliseconds.
_LIBPQ = {
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class SqlTableUnusable(HoldfastError):
    """The table of a ``SqlSink`` is missing, lacks a column, or has no unique key. The action has the SQL to run."""


class SqlTable:
    """The table of a sink, in one database.

    Args:
        url: The URL of the database.
        name: The name of the table.
        key: The names of its key columns.
        schema: Its schema; None means the database's default.
        create: Whether a missing table and missing columns are created.
    """

    def __init__(self, url: str | URL, name: str, key: tuple[str, ...], schema: str | None, *, create: bool) -> None:
        self._name, self.key, self._schema, self._create = name, key, schema, create
        try:
            parsed = make_url(url)
            dialect = parsed.get_backend_name()
            self._insert: Any = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}[dialect]
            given = _LIBPQ if dialect == "postgresql" else {"timeout": CONNECT_S, "check_same_thread": False}
            connect = {part: value for part, value in given.items() if part not in parsed.query}
            self._engine = create_engine(parsed, pool_pre_ping=True, pool_size=1, connect_args=connect)
        except (ArgumentError, NoSuchModuleError, KeyError) as unusable:
            raise SinkInvalid(
                f"The URL {shown_url(str(url))!r} of a SqlSink can't be used: expected a database of PostgreSQL or "
                "SQLite.",
                action="Write `postgresql+psycopg://user:password@host/database`, or `sqlite:////folder/file.db`.",
            ) from unusable
        self.url = parsed.render_as_string(hide_password=False)
        if dialect == "postgresql":
            event.listen(self._engine, "connect", _limit)
        self._table: Table | None = None
        owned: list[Column[Any]] = [Column(each, Text()) for each in ("sink_table", "processor", TOPIC)]
        owned += [Column(PARTITION, Integer()), Column("owner", Text(), nullable=False)]
        mine = PrimaryKeyConstraint("sink_table", "processor", TOPIC, PARTITION)
        self._owners: Table = Table(OWNERS, MetaData(), *owned, mine, schema=schema)

    @property
    def name(self) -> str:
        """The name of the table, with its schema."""
        return f"{self._schema}.{self._name}" if self._schema else self._name

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()
        self._table = None

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Context manager with a connection in a transaction, which is committed at the end."""
        with self._engine.begin() as connection:
            yield connection

    # -- owners of partitions -----------------------------------------------------------------------------------------

    def own(self, connection: Connection, place: Mapping[str, Any], owner: str) -> None:
        """Records the owner of a partition. Waits for a transaction of the former owner."""
        if self._create and not inspect(connection).has_table(OWNERS, self._schema):
            connection.execute(CreateTable(self._owners, if_not_exists=True))
        values = {"sink_table": self.name, **place, "owner": owner}
        made = self._insert(self._owners).values(values)
        key = list(self._owners.primary_key.columns)
        connection.execute(made.on_conflict_do_update(index_elements=key, set_={"owner": owner}))

    def owns(self, connection: Connection, place: Mapping[str, Any], owner: str) -> bool:
        """Whether a partition still has this owner. Until the end of the transaction, it can't get another owner."""
        there = self._owners.c
        mine = and_(
            there.sink_table == self.name, there.owner == owner, *(there[each] == part for each, part in place.items())
        )
        # An update locks the row in each database; a SELECT does not lock it in SQLite.
        return connection.execute(update(self._owners).where(mine).values(owner=owner)).rowcount == 1

    # -- rows ---------------------------------------------------------------------------------------------------------

    def prepare(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Reads the table's columns, and checks that it has those of the rows. Creates them if ``create`` is True.

        Raises:
            SqlTableUnusable: The table or a column is missing, or the key columns are not unique.
        """
        if self._table is None:
            self._table = self._read(connection, rows)
        lacking = self._lacking(self._table, rows)
        if not lacking:
            return
        statements = [self._add_column(name, kind) for name, kind in lacking.items()]
        if not self._create:
            raise SqlTableUnusable(
                f"Table {self.name} has no column {', '.join(lacking)}, which the rows have.",
                action=f"Run `{'; '.join(statements)}`, or write `create=True`. Or leave the field out by `row=`.",
                table=self.name,
                columns=list(lacking),
            )
        for statement in statements:
            connection.exec_driver_sql(statement)
        self._table = self._read(connection, rows)

    def write(self, connection: Connection, batch: SinkBatch, rows: Sequence[Row]) -> None:
        """Upserts and deletes rows whose stored offset is not newer."""
        table = self._table
        assert table is not None
        place = {TOPIC: batch.topic, PARTITION: batch.partition}
        upserts: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        deleted: list[dict[str, Any]] = []
        for row in rows:
            if row.values is None:
                deleted.append({f"k_{name}": part for name, part in row.key.items()} | {"at": row.item.offset})
            else:
                # A column of which only None is known has no type yet, so it may be missing in the table.
                values = {name: part for name, part in row.values.items() if part is not None or name in table.c}
                full = {**row.key, **values, **place, OFFSET: row.item.offset}
                upserts.setdefault(tuple(full), []).append(full)
        for columns, many in upserts.items():
            made = self._insert(table)
            new = made.excluded
            older = _not_newer(table, new[TOPIC], new[PARTITION], new[OFFSET])
            changed = {name: new[name] for name in columns if name not in self.key}
            connection.execute(made.on_conflict_do_update(index_elements=self.key, set_=changed, where=older), many)
        if deleted:
            mine = [table.c[name] == bindparam(f"k_{name}", type_=table.c[name].type) for name in self.key]
            older = _not_newer(table, batch.topic, batch.partition, bindparam("at"))
            connection.execute(delete(table).where(*mine, older), deleted)

    def forget(self) -> None:
        """Lets the next ``prepare`` read the table's columns again."""
        self._table = None

    def _read(self, connection: Connection, rows: Sequence[Row]) -> Table:
        try:
            table = Table(self._name, MetaData(), autoload_with=connection, schema=self._schema)
        except NoSuchTableError:
            wanted = self._wanted(rows)
            if not self._create:
                both = (wanted, self._owners)
                text = "; ".join(
                    " ".join(str(CreateTable(each, if_not_exists=True).compile(self._engine)).split()) for each in both
                )
                raise SqlTableUnusable(
                    f"Table {self.name} does not exist in {shown_url(self.url)}.",
                    action=f"Run `{text}`, or write `create=True`.",
                    table=self.name,
                ) from None
            connection.execute(CreateTable(wanted, if_not_exists=True))
            return wanted
        if not (self._create or inspect(connection).has_table(OWNERS, self._schema)):
            text = " ".join(str(CreateTable(self._owners).compile(self._engine)).split())
            raise SqlTableUnusable(
                f"Table {OWNERS}, which says which worker writes, does not exist in {shown_url(self.url)}.",
                action=f"Run `{text}`, or write `create=True`.",
                table=OWNERS,
            )
        self._check_unique(connection, table)
        return table

    def _check_unique(self, connection: Connection, table: Table) -> None:
        seen, key = inspect(connection), set(self.key)
        unique: list[set[Any]] = [{each.name for each in table.primary_key.columns}]
        unique += [set(each["column_names"]) for each in seen.get_unique_constraints(self._name, self._schema)]
        unique += [set(each["column_names"]) for each in seen.get_indexes(self._name, self._schema) if each["unique"]]
        if key in unique:
            return
        quote = self._engine.dialect.identifier_preparer.quote
        columns, index = ", ".join(quote(each) for each in self.key), quote(f"{self._name}_key")
        raise SqlTableUnusable(
            f"Table {self.name} has no unique index on the key columns {', '.join(self.key)}.",
            action=f"Run `CREATE UNIQUE INDEX {index} ON {self._quoted()} ({columns})`, or write the right `key=`.",
            table=self.name,
        )

    def _wanted(self, rows: Sequence[Row]) -> Table:
        kinds = {**kinds_of(rows, keys=True), **kinds_of(rows, keys=False)}
        kinds |= {TOPIC: Text(), PARTITION: Integer(), OFFSET: BigInteger()}
        columns: list[Column[Any]] = [
            Column(name, kinds.get(name) or Text(), primary_key=True, autoincrement=False) for name in self.key
        ]
        columns += [Column(name, kind) for name, kind in kinds.items() if name not in self.key]
        made: Table = Table(self._name, MetaData(), *columns, schema=self._schema)
        return made

    def _lacking(self, table: Table, rows: Sequence[Row]) -> dict[str, TypeEngine[Any]]:
        kinds: dict[str, TypeEngine[Any]] = {TOPIC: Text(), PARTITION: Integer(), OFFSET: BigInteger()}
        used = {**kinds_of(rows, keys=True), **kinds_of(rows, keys=False), **kinds}
        return {name: kind for name, kind in used.items() if name not in table.c}

    def _add_column(self, name: str, kind: TypeEngine[Any]) -> str:
        made = CreateColumn(Column(name, kind)).compile(self._engine)
        return f"ALTER TABLE {self._quoted()} ADD COLUMN {made}"

    def _quoted(self) -> str:
        quote = self._engine.dialect.identifier_preparer.quote
        return f"{quote(self._schema)}.{quote(self._name)}" if self._schema else quote(self._name)

    def what_to_do(self, row: Row) -> str:
        """The edit that lets the database accept a refused row. Names the column whose type is too small."""
        known = {} if self._table is None else {str(each.name): each.type for each in self._table.columns}
        for name, value in {**row.key, **(row.values or {})}.items():
            wider = wider_type(known[name], value) if name in known else None
            if wider is not None:
                if self._engine.dialect.name == "sqlite":  # it has no other type for whole numbers
                    return (
                        f"SQLite stores whole numbers of 64 bits: make {name} a text in a step before the sink, and "
                        "its column of type TEXT."
                    )
                quoted = self._engine.dialect.identifier_preparer.quote(name)
                return (
                    f"The type of column {name} is too small: run `ALTER TABLE {self._quoted()} ALTER COLUMN {quoted} "
                    f"TYPE {wider}`."
                )
        return f"Correct the value in a step before the sink, or change the constraint of table {self.name}."


def _limit(connection: Any, _record: object) -> None:
    """Sets time limits of a new connection to PostgreSQL."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = '{STATEMENT_S}s'")
        cursor.execute(f"SET lock_timeout = '{LOCK_S}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{FROZEN_S}s'")
    connection.commit()


def _not_newer(table: Table, topic: Any, partition: Any, offset: Any) -> Any:
    """The condition: the row was written by another partition, or by no later message of this one."""
    there = table.c
    elsewhere = or_(there[TOPIC].is_distinct_from(topic), there[PARTITION].is_distinct_from(partition))
    return or_(elsewhere, there[OFFSET].is_(None), there[OFFSET] <= offset)
