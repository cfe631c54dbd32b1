"""A real schema registry for tests: Apicurio as a plain Java process, and a reverse proxy for it.

`python -m tests.parts.schema_registry` downloads Apicurio's archive. Afterwards test runs need no network.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from holdfast.infra.settings import load_settings
from holdfast.infra.setup.jars import JarSource, fetch_jars, read_lock
from holdfast.infra.setup.java import find_java
from holdfast.infra.system.files import locked
from tests.parts.certificates import Certificates

LOCK = Path(__file__).with_name("jars.lock")
SET = "schema-registry"
#: The URL path at which Apicurio serves the API of Confluent's schema registry.
PATH = "/apis/ccompat/v7"
PATIENCE_S = 120.0


def unpacked() -> Path:
    """The folder with Apicurio's jars, unpacked once on this machine."""
    settings = load_settings()
    (archive,) = fetch_jars(SET, settings.cache, JarSource(find_java(), settings.ivy_settings), lock=LOCK)
    (pin,) = read_lock(SET, LOCK)
    folder = archive.parent / pin.sha256[:12]
    with locked(archive.parent / ".unpack.lock"):
        if not folder.exists():
            made = Path(tempfile.mkdtemp(dir=archive.parent))
            with tarfile.open(archive) as packed:
                packed.extractall(made, filter="data")
            made.rename(folder)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class SchemaRegistryServer:
    """Apicurio with its content in memory.

    The content is lost when the server stops, and kept while the server is frozen.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    def start(self) -> SchemaRegistryServer:
        self._folder.mkdir(parents=True, exist_ok=True)
        home = unpacked()
        (jar,) = home.glob("*runner.jar")
        command = [str(find_java().executable), "-Xmx384m", "-XX:TieredStopAtLevel=1"]
        command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}", "-jar", str(jar)]
        log = self._folder / "log"
        with log.open("ab") as written:
            # The process has the folder of the test run in its environment. By this folder, the end of the run finds
            # leftover processes and kills them.
            environment = {**os.environ, "HOLDFAST_TEST_FOLDER": str(self._folder)}
            self._process = subprocess.Popen(command, stdout=written, stderr=written, cwd=self._folder, env=environment)
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        return self

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", f"{PATH}/subjects")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def freeze(self) -> None:
        """Freeze the server. It then accepts connections, but answers no request."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None


class Front:
    """A reverse proxy for a schema registry. It can add TLS, require credentials, answer an error, or be closed.

    Args:
        port: The schema registry's port.
        authorization: The header `Authorization` that each request needs; None requires no header.
        certificates: Serve HTTPS with these certificates; None serves HTTP.
    """

    def __init__(
        self, port: int, *, authorization: str | None = None, certificates: Certificates | None = None
    ) -> None:
        self._behind, self.port = port, free_port()
        self.authorization, self._certificates = authorization, certificates
        #: The status code of every answer. None passes requests on to the schema registry.
        self.status: int | None = None
        #: Method and path of each request that arrived.
        self.requests: list[str] = []
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self._certificates is None else 'https'}://127.0.0.1:{self.port}{PATH}"

    def open(self) -> Front:
        front = self

        class Handler(BaseHTTPRequestHandler):
            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                front.requests.append(f"{self.command} {self.path.removeprefix(PATH)}")
                if front.authorization is not None and self.headers.get("Authorization") != front.authorization:
                    self._answer(401, b'{"error_code": 401, "message": "Unauthorized"}')
                elif front.status is not None:
                    self._answer(front.status, b'{"error_code": 50001, "message": "not now"}')
                else:
                    self._answer(*front._passed_on(self.command, self.path, body, dict(self.headers)))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = _pass

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        if self._certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificates.certificate, self._certificates.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def _passed_on(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._behind, timeout=30)
        kept = {name: value for name, value in headers.items() if name.lower() in ("content-type", "accept")}
        try:
            connection.request(method, path, body or None, kept)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def close(self) -> None:
        """Stop listening; `open` listens again on the same port."""
        if self._server is not None:
            with suppress(OSError):
                self._server.shutdown()
            self._server.server_close()
            self._server = None


if __name__ == "__main__":
    print(f"the schema registry of the tests: {unpacked()}")
