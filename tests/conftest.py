"""Set-up of all tests: tiers, markers by folder, no silent skips in CI, one real broker for each run."""

from __future__ import annotations

import compileall
import gc
import itertools
import os
import signal
import sys
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from xdist.scheduler import LoadFileScheduling

from holdfast.infra import masking
from holdfast.infra.setup.java import Java, find_java
from holdfast.infra.system import privacy
from holdfast.orchestration.commands import options
from tests.mechanics import bytecode, hypothesis_profile  # noqa: F401
from tests.mechanics.constants import Constants
from tests.mechanics.json_answers import compared_text
from tests.mechanics.leftovers import end_leftovers
from tests.mechanics.tiers import (
    MARKED_FOLDERS,
    QUICK_FOLDERS,
    TESTS,
    TIERS,
    belongs,
    folder_of,
    in_part,
    in_turn,
    select,
    write_seconds,
    write_slow_cases,
)
from tests.parts import brokers
from tests.parts.brokers import TrackedBroker, stop_all

# A process that is started in the background ignores SIGINT. If SIGINT is ignored, Dagster and its child processes
# ignore SIGTERM, too. So restore the default handler of SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: If this variable is 1, a skipped test in a folder with real parts (brokers, Spark, browsers) fails the run.
NO_SKIPS = "HOLDFAST_TEST_NO_SKIPS"
#: The report of a failed test shows the last lines of its log files: at most 6 files, 80 lines of each.
LOGS_SHOWN = 6
LOG_LINES_SHOWN = 80
#: Folders that are compiled to bytecode before a run. Tests start hundreds of processes. Where PYTHONDONTWRITEBYTECODE
#: is set, each process would otherwise compile its imports again.
COMPILED = ("holdfast", "infra", "processors", "orchestration", "assets")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, default="test", help="which cases run: see tests/README.md")
    parser.addoption("--part", metavar="1/3", help="run only this part of the cases")
    parser.addoption(
        "--write-seconds",
        action="store_true",
        help="write the seconds of files, and slow cases, to tests/mechanics",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what `make quick` never runs: Spark, Dagster and the browser take seconds to import."""
    if config.getoption("--tier") == "quick" and collection_path.is_dir() and collection_path.parent == TESTS:
        return collection_path.name not in QUICK_FOLDERS or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if folder_of(item.path) in MARKED_FOLDERS:
            item.add_marker(folder_of(item.path))
    chosen = [item for item in items if belongs(item, config.getoption("--tier"))]
    if config.getoption("--part"):
        chosen = in_part(chosen, config.getoption("--part"))
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = in_turn(chosen)


def pytest_configure(config: pytest.Config) -> None:
    select(config.getoption("--tier"))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Seconds(config.getoption("--write-seconds")))
        # Compile before the test processes start. A folder that is already compiled takes 0.1 s.
        for folder in COMPILED:
            compileall.compile_dir(TESTS.parent / folder, quiet=2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Cache the rewritten test modules as bytecode, and collect garbage only after the test cases are collected.

    Each test process collects all cases. To rewrite the assertions of all test modules takes 10 s of CPU, so the
    bytecode is written even where PYTHONDONTWRITEBYTECODE is set. After the collection, the variable has its effect
    again, because a test may change a module twice within a second: Python could then load the bytecode of the first
    change. The collected cases stay in memory until the end of the run, so they are frozen: the garbage collector
    skips them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        sys.dont_write_bytecode = bytecode.BEFORE


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the brokers of the run, including brokers of a test process that died."""
    if not hasattr(config, "workerinput"):
        stop_all(config._tmp_path_factory.getbasetemp())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Kill processes that the run left behind, and fail the run if there were any.

    This hook runs after all test processes have ended.
    """
    yield
    config = session.config
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    stop_all(config._tmp_path_factory.getbasetemp())
    for line in end_leftovers(config._tmp_path_factory.getbasetemp()):
        config.get_terminal_writer().line(f"LEFT BEHIND by a test, and ended now: {line}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


class Seconds:
    """Counts the seconds of each test file, summed over all test processes. The report shows the sums by folder."""

    def __init__(self, write: bool) -> None:
        self.files: Counter[str] = Counter()
        self.cases: Counter[str] = Counter()
        self.write = write

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.files[report.nodeid.partition("::")[0]] += report.duration
        if report.when == "call":  # count only the call, because test cases share their set-up
            self.cases[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.files:
            return
        folders: Counter[str] = Counter()
        for file, seconds in self.files.items():
            folders["/".join(file.split("/")[:2])] += seconds
        told = ", ".join(f"{folder.removeprefix('tests/')} {seconds:.0f}" for folder, seconds in folders.most_common())
        terminalreporter.write_line(f"seconds on all test processes: {told}; together {folders.total():.0f}")
        if self.write:
            write_seconds(self.files)
            write_slow_cases(self.cases)


#: Files outside of `tests/tidy` that read the syntax trees of all modules. They run in the test process of
#: `tests/tidy`, so that each tree is parsed only once.
WALKS_ALL_MODULES = frozenset(
    {
        "tests/docs/test_reference.py",
        "tests/unit/orchestration/commands/test_json_documents.py",
        "tests/unit/orchestration/commands/test_named_commands.py",
    }
)


class FilesAndSpark(LoadFileScheduling):
    """Gives each test file to one test process, and all Spark files to the same one: its JVM stays warm between files.

    All files of tests/tidy go to one process, too, because they share the syntax trees of all modules. All files of
    tests/kafka/formats go to one process, because they share a schema registry.

    In a thorough run, files in tests/spark/model start a JVM of their own, so any test process may run them.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        own_jvm = file.startswith("tests/spark/model/") and self.config.getoption("--tier") == "thorough"
        if own_jvm:
            return file
        if file in WALKS_ALL_MODULES:
            return "tests/tidy"
        together = ("tests/spark", "tests/tidy", "tests/kafka/formats")
        return next((folder for folder in together if file.startswith(f"{folder}/")), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesAndSpark:
    return FilesAndSpark(config, log)


@pytest.fixture(autouse=True, scope="session")
def answers_fit_their_schemas() -> Iterator[None]:
    """In every test, compare the JSON that a command prints in this process with the command's schema."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "as_text", compared_text(options.as_text))
        yield


@pytest.fixture(scope="session")
def constants() -> Constants:
    """The constants of Holdfast's modules, with their values at the first test of this process."""
    return Constants()


@pytest.fixture(autouse=True, scope="module")
def constants_stay(constants: Constants) -> Iterator[None]:
    """Fail a module whose tests leave a changed constant behind, because later tests in this process would use it."""
    constants.look()
    yield
    assert not (changes := constants.look()), f"constants are changed for the tests after this module: {changes}"


@pytest.fixture(autouse=True, scope="module")
def logging_begins_anew() -> None:
    """Reset structlog before each module: fixtures of an earlier module may have configured it in this process."""
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def logging_is_everybodys(logging_begins_anew: None) -> Iterator[None]:
    """Restore the logging configuration after each test: a command that runs in this process changes it."""
    before, configured = structlog.get_config(), structlog.is_configured()
    yield
    if configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


@pytest.fixture(autouse=True)
def secrets_and_umask_are_everybodys() -> Iterator[None]:
    """Restore the remembered secrets and the umask after each test, so that they do not affect the next test."""
    umask = os.umask(0o022)
    os.umask(umask)
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((masking, "_remembered"), (masking, "_pattern"), (privacy, "_taken")):
            patch.setattr(module, name, getattr(module, name))
        yield
    os.umask(umask)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Turn a skip of a test with real parts into a failure if `HOLDFAST_TEST_NO_SKIPS` is 1."""
    report = yield
    real = any(item.get_closest_marker(folder) for folder in MARKED_FOLDERS)
    if report.skipped and not hasattr(report, "wasxfail") and real and os.environ.get(NO_SKIPS) == "1":
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped ({report.longrepr}), which {NO_SKIPS}=1 does not allow"
    if report.failed:
        report.sections += _logs_of(item)
    return report


def _logs_of(item: pytest.Item) -> list[tuple[str, str]]:
    """The ends of the log files in a failed test's folder. Often nothing else explains a rare failure."""
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder is None:
        return []
    # RocksDB databases and a broker's partitions have binary files that also end in .log
    binary = {"state", "data"}
    logs = sorted(path for path in folder.rglob("*.log") if path.is_file() and not binary & {*path.parts})
    return [(str(path.relative_to(folder)), "".join(_last_lines(path))) for path in logs[:LOGS_SHOWN]]


def _last_lines(path: Path) -> deque[str]:
    with path.open(errors="replace") as lines:
        return deque(lines, maxlen=LOG_LINES_SHOWN)


@pytest.fixture(autouse=True, scope="session")
def _no_settings_from_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove a developer's own HOLDFAST_ settings, which would change the tests.

    The settings for the cache of jars and for Ivy stay. Checkpoints go to a temporary folder, even in tests that use
    the developer's home folder.
    """
    kept = {"HOLDFAST_CACHE", "HOLDFAST_IVY_SETTINGS", NO_SKIPS}
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("HOLDFAST_") and name not in kept]:
            patch.delenv(name)
        patch.setenv("HOLDFAST_PROJECT", "")  # ignore a project file in folders above the checkout
        patch.setenv("HOLDFAST_CHECKPOINTS__URL", str(tmp_path_factory.mktemp("checkpoints")))
        # With several test processes, each has its own folder inside the folder of the run.
        mine = tmp_path_factory.getbasetemp()
        brokers.belong_to(mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine)
        yield


@pytest.fixture(scope="session")
def java() -> Java:
    """The Java installation of this machine."""
    return find_java()


@pytest.fixture(scope="session")
def broker_jars() -> tuple[Path, ...]:
    """The locked jars of the broker, from the machine's cache."""
    return brokers.broker_jars()


@pytest.fixture(scope="session")
def broker(broker_jars: tuple[Path, ...]) -> str:
    """The bootstrap address of a real broker that all tests of the run share; use `unique` names on it."""
    return brokers.shared_broker().bootstrap


@pytest.fixture
def own_broker(tmp_path: Path, broker_jars: tuple[Path, ...]) -> Iterator[TrackedBroker]:
    """A real broker for one test only: the test may freeze it, kill it and start it again."""
    with brokers.started_broker(tmp_path / "own-broker") as started:
        yield started


@pytest.fixture(scope="session")
def unique() -> Callable[[str], str]:
    """Makes names that no other test and no other run uses: ``unique("flights")``."""
    run = uuid.uuid4().hex[:8]
    numbers = itertools.count(1)
    return lambda name: f"{name}-{run}-{next(numbers)}"
