"""What `pip install` gives: the core alone runs the first example; with all extras the demo runs in an empty folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.settings import load_settings
from holdfast.infra.system.ports import free_port
from tests.kafka.conftest import wait_for
from tests.parts.wheels import PROJECT, build_wheel, install, outside

#: Maximum size of the installed core in MiB, without the bytecode that Python writes at the first import.
CORE_MB_MAX = 60
#: The files of the package that are not Python source.
DATA = {
    *("holdfast/py.typed", "holdfast/jars.lock", "holdfast/workspace.yaml"),
    *("holdfast/infra/dagster/local.yaml", "holdfast/infra/dagster/production.yaml"),
    *("holdfast/infra/database/migrations/script.py.mako", "holdfast/infra/kafka/broker_log4j2.properties"),
    *(
        f"holdfast/orchestration/project/template/{name}.txt"
        for name in (
            *("README.md", "gitignore", "holdfast.toml", "orders.jsonl", "pyproject.toml"),
            "tests/test_processors.py",
            *("my_project/__init__.py", "my_project/definitions.py", "my_project/processors.py"),
        )
    ),
}
EXTRAS_OF_ALL = ("numpy", "sqlalchemy", "dagster", "pyspark", "s3fs", "psycopg")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def first_example(bootstrap: str, group: str) -> str:
    """The source of README's first example, changed to use this broker and unique topics."""
    example = re.search(r"^```python\n(.*?)^```", (PROJECT / "README.md").read_text(), re.M | re.S)
    assert example is not None
    code = example[1]
    for old, new in (
        ("localhost:9092", bootstrap),
        ('"consumer"', f'"{group}"'),
        ('"topic"', f'"{group}-in"'),
        ('"totals"', f'"{group}-out"'),
    ):
        assert code.count(old) == 1
        code = code.replace(old, new)
    return code


def content_mb(folder: Path) -> float:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sum(path.stat().st_size for path in files) / 2**20


def container_of(target: str) -> tuple[list[str], list[str]]:
    """The command of a target in the Dockerfile, and the command of its health check."""
    stage = (PROJECT / "Dockerfile").read_text().split(f" AS {target}\n")[1].split("\nFROM ")[0]
    check = re.search(r"HEALTHCHECK.*?CMD (\[.*?\])$", stage, re.M | re.S)
    command = re.search(r"^ENTRYPOINT (\[.*\])$", stage, re.M) or re.search(r"^CMD (\[.*\])$", stage, re.M)
    assert check is not None
    assert command is not None
    return json.loads(command[1]), json.loads(check[1])


@contextmanager
def running(command: list[str], environment: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to the file ``log``; it is killed if it still runs at the end of the block."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def test_the_wheel_has_every_file_that_is_no_python(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    others = {name for name in names if not name.endswith(".py") and ".dist-info/" not in name}
    docs = {name for name in others if name.startswith("holdfast/docs/")}  # test_import_root.py compares the docs pages
    assert others - docs == DATA
    assert {Path(name).suffix for name in docs} == {".md", ".png"}
    folders = ("infra", "processors", "assets", "orchestration")
    command = ["git", "ls-files", "-co", "--exclude-standard", *folders]
    tracked = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    ours = {
        f"holdfast/{name}" for name in tracked.splitlines() if "/container/" not in name and (PROJECT / name).is_file()
    }
    assert len(ours) > 100
    assert ours - names == set()
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_core_alone_runs_the_first_example(wheel: Path, stream: Any, tmp_path: Path) -> None:
    programs = install(wheel, tmp_path / "environment")
    (packages,) = (tmp_path / "environment" / "lib").glob("python3.*/site-packages")
    assert not [name for name in EXTRAS_OF_ALL if (packages / name).exists()]
    assert content_mb(packages) < CORE_MB_MAX

    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "first.py").write_text(first_example(stream.bootstrap, stream.group))
    stream.topics.create(TopicSpec(stream.sink, 1, 1))
    stream.feed([(b"a", b'{"n": 1}'), (b"b", b'{"n": 2}'), (b"a", b'{"n": 3}')])
    environment = outside(tmp_path / "home")
    with running([str(programs / "python"), "first.py"], environment, folder) as process:
        wait_for(lambda: process.poll() is not None or len(stream.read(stream.sink)) >= 3, "three outputs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (folder / "log").read_text()[-3000:]
    values = [(record.key, json.loads(record.value or b"")) for record in stream.read(stream.sink)]
    assert sorted(values, key=str) == [
        (b"a", {"n": 1, "total": 1}),
        (b"a", {"n": 3, "total": 2}),
        (b"b", {"n": 2, "total": 1}),
    ]

    entrypoint, check = container_of("worker")
    (folder / "shop.py").write_text((folder / "first.py").read_text().replace("app.run()", ""))
    port = str(free_port())
    working = {
        **environment,
        "PATH": f"{programs}{os.pathsep}{environment['PATH']}",
        "PYTHONPATH": str(folder),
        "HOLDFAST_PROCESSORS": '["shop:app"]',
        "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": stream.bootstrap,
        "HOLDFAST_SERVING__PORT": port,
    }
    stream.feed([(b"b", b'{"n": 4}')])
    with running([*entrypoint, "--processor", stream.group], working, folder) as worker:
        probe = [word.replace("9464", port) for word in check]
        wait_for(lambda: subprocess.run(probe, env=working, capture_output=True, check=False).returncode == 0, "health")
        wait_for(lambda: len(stream.read(stream.sink)) >= 4, "one more output")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, (folder / "log").read_text()[-3000:]
    assert json.loads(stream.read(stream.sink)[-1].value or b"") == {"n": 4, "total": 2}

    def holdfast(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(programs / "holdfast"), *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    assert holdfast("--version").stdout.startswith("holdfast 0.")
    made = json.loads(holdfast("init", "shop", "--json").stdout)
    assert all((folder / "shop" / name).is_file() for name in (*made["files"], "shop/processors.py", ".gitignore"))
    assert holdfast("logs", "nobody").returncode == 64
    refused = holdfast("status")
    assert refused.returncode == 64
    assert "Run `pip install 'holdfast[operate]'`" in " ".join(refused.stderr.split())


@pytest.mark.thorough
def test_with_all_extras_the_demo_of_the_whole_year_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    programs = install(wheel, tmp_path / "environment", "all")
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = outside(tmp_path / "home", HOLDFAST_CACHE=str(load_settings().cache))
    del environment["HOLDFAST_HOME"]  # without it, the home is a folder in the working directory
    done = subprocess.run(
        [str(programs / "holdfast"), "demo", "--months", "12"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert [path.name for path in empty.iterdir()] == [".holdfast"]


@pytest.mark.thorough
def test_the_container_of_the_platform_runs_as_a_process(wheel: Path, tmp_path: Path) -> None:
    programs = install(wheel, tmp_path / "environment", "all")
    command, check = container_of("platform")
    port = str(free_port())
    environment = outside(tmp_path / "home", HOLDFAST_CACHE=str(load_settings().cache))
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    here = [word.replace("3000", port) for word in command]
    probe = [word.replace("3000", port) for word in check]
    log = tmp_path / "log"
    with running(here, environment, tmp_path) as platform:
        wait_for(
            lambda: (
                platform.poll() is not None
                or subprocess.run(probe, env=environment, capture_output=True, check=False).returncode == 0
            ),
            "health",
        )
        targets = tmp_path / "home" / "run" / "scrape-targets.json"
        wait_for(lambda: platform.poll() is not None or targets.exists(), "the targets of Prometheus")
        assert platform.poll() is None, log.read_text()[-3000:]
        platform.send_signal(signal.SIGTERM)
        assert platform.wait(120) == 0, log.read_text()[-3000:]
    assert "Stopped: webserver, daemon, supervisor and processors, broker." in log.read_text()
