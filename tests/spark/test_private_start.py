"""A Spark JVM starts without any secret on its command line, and the files that Spark writes are private."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.infra.settings import PROJECT, Settings, load_settings
from holdfast.infra.setup.java import BRIEF
from holdfast.infra.spark.server import start_server, stop_server

SECRET = "a secret: = \\ of this test's Spark"
CONF = {
    "spark.hadoop.fs.s3a.secret.key": SECRET,
    "spark.driver.extraJavaOptions": f'-Dtest.password="{SECRET.replace(chr(92), chr(92) * 2)}" {BRIEF}',
}
#: A program that starts its own JVM, as a Dagster run does.
PROGRAM = """
import json, os, sys
from pathlib import Path
from holdfast.infra.settings import load_settings
from holdfast.infra.spark.session import spark_session, stop_spark

os.umask(0o022)
settings = load_settings()
session = spark_session(settings, app_name="private")
java = session.sparkContext._jvm.java.lang
told = {
    "conf": session.conf.get("spark.hadoop.fs.s3a.secret.key"),
    "option": java.System.getProperty("test.password"),
    "heap": java.Runtime.getRuntime().maxMemory() >> 20,
    "commands": [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in children()],
    "left": [str(path) for path in settings.paths.spark.rglob("driver*")],
}
session.sql("CREATE NAMESPACE holdfast.some")
session.sql("CREATE TABLE holdfast.some.numbers AS SELECT id FROM range(10)")
told["rows"] = session.table("holdfast.some.numbers").count()
stop_spark(session)
print(json.dumps(told))
"""
CHILDREN = """
def children():
    from pathlib import Path
    return [path.name for path in Path("/proc").glob("[0-9]*") if parent(path) == os.getpid()]

def parent(path):
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_SPARK__MASTER", "local[1]")
    monkeypatch.setenv("HOLDFAST_SPARK__DRIVER_MEMORY_MB", "600")
    monkeypatch.setenv("HOLDFAST_SPARK__CONF", json.dumps(CONF))
    return load_settings()


def test_a_run_with_its_own_jvm_shows_no_property(settings: Settings, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CHILDREN + PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)], cwd=PROJECT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["conf"], told["option"], told["rows"]) == (SECRET, SECRET, 10)
    assert told["heap"] in range(570, 601)
    (jvm,) = told["commands"]
    assert "--properties-file" in jvm
    assert SECRET not in jvm
    assert "spark.hadoop" not in jvm
    assert "catalog" not in jvm
    assert told["left"] == []
    assert SECRET not in done.stderr
    assert open_to_others(settings.home) == []


@pytest.mark.thorough
def test_the_warm_spark_shows_none_either(settings: Settings) -> None:
    server = start_server(settings)
    try:
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode()
        assert "SparkConnectServer" in command
        assert "-Xmx600m" in command
        assert SECRET not in command
        assert server.token not in command
        beside = {each.name: each.read_text() for each in settings.paths.spark.glob("warm.*")}
        assert beside.keys() == {"warm.json", "warm.lock", "warm.process"}, "no file with properties is left"
        assert [name for name, text in beside.items() if SECRET in text] == []
    finally:
        stop_server(settings)


def open_to_others(home: Path) -> list[str]:
    """Files that other users could read or write, in a home made by a process with umask 022."""
    return [
        f"{stat.S_IMODE(path.lstat().st_mode):o} {path}"
        for folder, folders, files in os.walk(home)
        for path in (Path(folder) / name for name in (".", *folders, *files))
        if not path.is_symlink() and path.lstat().st_mode & 0o066
    ]
