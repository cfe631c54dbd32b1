"""A real Postgres server for the tests of sinks."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.parts.postgres import PASSWORD, USER, PostgresServer
from tests.parts.redis_server import RedisServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


def sink_url(server: PostgresServer, database: str) -> str:
    """The URL of a database for a sink, with user and password."""
    place = server.url(database).removeprefix("postgresql://")
    return f"postgresql+psycopg://{USER}:{quote(PASSWORD, safe='')}@{place}"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.remove()
