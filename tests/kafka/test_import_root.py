"""Every module of Holdfast is imported under only one name: in this process, in a worker, and from an installed wheel.

A user's project may have packages named ``infra``, ``assets`` and ``processors``. They must not be confused with
Holdfast's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.parts.wheels import build_wheel

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("infra", "processors", "assets", "orchestration")

#: Source of a function that lists the name and the file of each loaded module of Holdfast.
LOADED = """
import json, sys
from pathlib import Path

def loaded():
    files = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    return [(name, str(Path(file).resolve())) for name, file in files if file]
"""

#: A processor in a project that has packages with the same names as Holdfast's folders.
PROGRAM = (
    LOADED
    + """
from assets import NAME
from infra.connections import BOOTSTRAP
from processors.totals import add

from holdfast import Application
import holdfast

app = Application(BOOTSTRAP, consumer_group=NAME, auto_offset_reset="earliest", state_dir=sys.argv[1], loglevel=None)
frame = app.dataframe(app.topic(NAME + "-in")).apply(add, stateful=True, store="totals")
frame.to_topic(app.topic(NAME + "-out"))
app.run(count=3, timeout=60)
import processors, infra, assets
print(json.dumps({"loaded": loaded(), "own": [processors.__file__, infra.__file__, assets.__file__],
                  "holdfast": holdfast.__file__}))
"""
)

TOTALS = """
def add(value, state):
    state.set("total", state.get("total", 0) + value)
    return state.get("total")
"""


def names_by_file(loaded: list[tuple[str, str]], root: Path) -> Counter[str]:
    """For each file below ``root``, the number of module names under which the file was loaded."""
    return Counter(file for name, file in loaded if Path(file).is_relative_to(root) and name != "__main__")


def assert_one_name(loaded: list[tuple[str, str]], root: Path) -> None:
    counted = names_by_file(loaded, root)
    assert len(counted) > 10
    assert [file for file, count in counted.items() if count > 1] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_refuses_another_name(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert f"imported as '{folder}'; expected 'holdfast.{folder}'" in done.stderr


@pytest.mark.thorough
def test_a_worker_loads_each_module_once(stream: Any, tmp_path: Path) -> None:
    stream.feed_numbers(1)
    program = LOADED + (
        "from holdfast.processors.__main__ import main\n"
        "from holdfast.processors.engine.runtime.task.task import Task\n"
        "import os\n"
        "process = Task.process\n"
        "def seen(self, *given):\n"
        "    print(json.dumps(loaded()), flush=True)\n"
        "    os._exit(0)\n"
        "Task.process = seen\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    definition = tmp_path / "counting_definition.py"
    definition.write_text(
        "from holdfast import Application\n"
        f"application = Application({stream.bootstrap!r}, consumer_group={stream.group!r}, "
        f"auto_offset_reset='earliest', "
        f"state_dir={str(stream.state_dir)!r}, loglevel=None)\n"
        f"application.dataframe(application.topic({stream.source!r}))"
        ".apply(lambda value: value)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{PROJECT}{os.pathsep}{tmp_path}",
        "HOLDFAST_HOME": str(tmp_path / "home"),
        "HOLDFAST_PROCESSORS": json.dumps(["counting_definition:application"]),
    }
    done = subprocess.run(
        [sys.executable, "-c", program, "--processor", stream.group, "--slot", "0"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    assert lines, done.stdout + done.stderr
    assert_one_name(json.loads(lines[0]), PROJECT)


@pytest.mark.thorough
def test_the_wheel_works_beside_a_project_with_packages_of_the_same_names(stream: Any, tmp_path: Path) -> None:
    installed = install_wheel(tmp_path)
    stream.feed([(b"a", b"1"), (b"a", b"2"), (b"b", b"4")])
    project = tmp_path / "project"
    for package, module, text in (
        ("assets", "__init__", f"NAME = {stream.group!r}\n"),
        ("infra", "connections", f"BOOTSTRAP = {stream.bootstrap!r}\n"),
        ("processors", "totals", TOTALS),
    ):
        (project / package).mkdir(parents=True)
        (project / package / "__init__.py").write_text("")
        (project / package / f"{module}.py").write_text(text)
    (project / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", str(tmp_path / "state")],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(installed), "HOLDFAST_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["holdfast"] == str(installed / "holdfast" / "__init__.py")
    assert all(Path(file).is_relative_to(project) for file in told["own"])
    assert_one_name(told["loaded"], installed / "holdfast")
    assert sorted(int(record.value) for record in stream.read(stream.sink)) == [1, 3, 4]


def install_wheel(tmp_path: Path) -> Path:
    """Build the wheel of this checkout and install it in a separate folder. Returns the folder."""
    wheel = build_wheel(tmp_path)
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(installed), str(wheel)], check=True, capture_output=True, timeout=300)
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} <= {"holdfast", "bin"}
    # the wheel contains the docs pages, because the webserver serves the docs of its own version
    pages = {page.relative_to(installed / "holdfast") for page in (installed / "holdfast" / "docs").rglob("*.md")}
    here = {page.relative_to(PROJECT) for page in (PROJECT / "docs").rglob("*.md")}
    assert pages == {page for page in here if ".site" not in page.parts}
    return installed
