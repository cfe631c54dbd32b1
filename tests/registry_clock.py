"""A clock for the registry (Holdfast's database) that a test can set.

It is a SQL function in SQLite and in Postgres.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import psycopg

from tests.parts.postgres import PASSWORD, USER, PostgresServer


class Clock:
    """The clock that the registry (Holdfast's database) reads. The test moves it forward."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.session: psycopg.Connection[Any] | None = None

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        if self.session is not None:
            self.session.execute("UPDATE model_clock SET now_s = %s", (self.now_s,))

    def close(self) -> None:
        if self.session is not None:
            self.session.close()


def url_with_clock(server: PostgresServer, database: str, clock: Clock) -> str:
    """The URL of a Postgres database in which ``clock_timestamp()`` returns the test's time."""
    server.query(f"CREATE TABLE model_clock AS SELECT {clock.now_s}::float8 AS now_s", database)
    server.query(
        "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
        "'SELECT to_timestamp(now_s) FROM public.model_clock'",
        database,
    )
    about = {"host": "127.0.0.1", "port": server.port, "user": USER, "password": PASSWORD, "dbname": database}
    clock.session = psycopg.connect(**about, autocommit=True)  # type: ignore[arg-type]
    options = quote("-csearch_path=public,pg_catalog")
    place = f"{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}"
    return f"postgresql+psycopg://{place}/{database}?options={options}"
