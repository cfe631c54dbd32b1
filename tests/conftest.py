"""What all tests share: markers by folder, no silent skips in CI, one real broker for each run."""

from __future__ import annotations

import itertools
import os
import signal
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from xdist.scheduler import LoadFileScheduling

from holdfast.infra.jars import JarSource, fetch_jars
from holdfast.infra.java import BRIEF, Java, find_java
from holdfast.infra.kafka.broker import EmbeddedBroker
from holdfast.infra.settings import load_settings

# Started in the background, a process ignores SIGINT; Dagster then gives SIGTERM the same fate, for children, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).resolve().parent
#: A test below one of these folders gets the folder's name as its marker.
MARKED_FOLDERS = frozenset({"kafka", "spark", "dagster", "browser", "drills"})
#: Set to 1, a skipped test of those folders fails the run.
NO_SKIPS = "HOLDFAST_TEST_NO_SKIPS"
#: Of a failed test's logs, the report shows so many files, and of each the last lines.
LOGS_SHOWN = 6
LOG_LINES_SHOWN = 80


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-drills", action="store_true", help="run the drills that take long, too")
    parser.addoption("--thorough", action="store_true", help="run more seeds, and the bench in small, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [
        item
        for marker, option in (("long_drill", "--all-drills"), ("thorough", "--thorough"))
        if not config.getoption(option)
        for item in items
        if item.get_closest_marker(marker)
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = _in_turn([item for item in items if item not in left_out])
    for item in items:
        folders = item.path.relative_to(TESTS).parts[:-1]
        for folder in MARKED_FOLDERS.intersection(folders):
            item.add_marker(folder)


def _in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Spark's files first, one after the other; then those of the other folders with real parts by turns.

    A worker takes Spark's as a whole (``FilesAndSpark``), while others do what mostly waits; what takes seconds comes
    last, so that no worker is left alone with what takes minutes.
    """
    files: dict[str, dict[Path, None]] = {}
    for item in items:
        files.setdefault(item.path.relative_to(TESTS).parts[0], {})[item.path] = None
    turns = {
        file: (folder != "spark", folder not in MARKED_FOLDERS, place / len(there))
        for folder, there in files.items()
        for place, file in enumerate(there)
    }
    return sorted(items, key=lambda item: turns[item.path])


class FilesAndSpark(LoadFileScheduling):
    """Each file goes to one worker, those of Spark all to the same: its JVM stays warm from file to file."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return "tests/spark" if file.startswith("tests/spark/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesAndSpark:
    return FilesAndSpark(config, log)


@pytest.fixture(autouse=True)
def logging_is_everybodys() -> Iterator[None]:
    """A command that runs in this process sets its own logging up; the next test's is as before."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Turn a skip of a test on real parts into a failure where skips are not allowed."""
    report = yield
    real = any(item.get_closest_marker(folder) for folder in MARKED_FOLDERS)
    if report.skipped and not hasattr(report, "wasxfail") and real and os.environ.get(NO_SKIPS) == "1":
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped ({report.longrepr}), which {NO_SKIPS}=1 does not allow"
    if report.failed:
        report.sections += _logs_of(item)
    return report


def _logs_of(item: pytest.Item) -> list[tuple[str, str]]:
    """What the processes of a failed test wrote: a rare failure is understood from this, or not at all."""
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder is None:
        return []
    logs = sorted(path for path in folder.rglob("*.log") if path.is_file() and "state" not in path.parts)
    return [(str(path.relative_to(folder)), "".join(_last_lines(path))) for path in logs[:LOGS_SHOWN]]


def _last_lines(path: Path) -> deque[str]:
    with path.open(errors="replace") as lines:
        return deque(lines, maxlen=LOG_LINES_SHOWN)


@pytest.fixture(autouse=True, scope="session")
def _no_settings_from_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A developer's own HOLDFAST_ settings must not decide what tests do; cache and mirror may stay.

    What runs with a developer's home folder keeps its checkpoints elsewhere.
    """
    kept = {"HOLDFAST_CACHE", "HOLDFAST_IVY_SETTINGS", NO_SKIPS}
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("HOLDFAST_") and name not in kept]:
            patch.delenv(name)
        patch.setenv("HOLDFAST_CHECKPOINTS__URL", str(tmp_path_factory.mktemp("checkpoints")))
        yield


@pytest.fixture(scope="session")
def java() -> Java:
    """The machine's Java."""
    return find_java()


@pytest.fixture(scope="session")
def broker_jars(java: Java) -> tuple[Path, ...]:
    """The locked jars of the broker, from the machine's cache."""
    settings = load_settings()
    return fetch_jars("broker", settings.cache, JarSource(java, settings.ivy_settings))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, java: Java, broker_jars: tuple[Path, ...]) -> Iterator[str]:
    """The bootstrap address of a real broker that all tests of the run share; use `unique` names on it."""
    embedded = EmbeddedBroker(
        tmp_path_factory.mktemp("broker"), heap_mb=384, java=java, jars=broker_jars, options=[BRIEF]
    )
    yield embedded.start().bootstrap
    embedded.stop()


@pytest.fixture(scope="session")
def unique() -> Callable[[str], str]:
    """Makes names that no other test and no other run uses: ``unique("flights")``."""
    run = uuid.uuid4().hex[:8]
    numbers = itertools.count(1)
    return lambda name: f"{name}-{run}-{next(numbers)}"
