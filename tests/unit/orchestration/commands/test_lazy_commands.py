"""Commands are imported when they run. Until then, the help shows stand-ins with the same texts."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.rich_utils

import holdfast
from holdfast.infra.database.registry import Registry
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE
from holdfast.infra.sample_data.flights import flights_of
from holdfast.orchestration.cli import app, main
from holdfast.orchestration.commands.lazy import LazyCommand, loaded
from tests.mechanics.tiers import variants

#: These modules make a command's start slow, and only some commands need them: Holdfast's engine, and libraries.
ENGINE = (
    "holdfast.processors.application",
    "holdfast.processors.engine.dataframe",
    "holdfast.processors.engine.windows",
)
DATABASE = ("sqlalchemy",)
KAFKA = ("confluent_kafka", "kafka")
WORKERS = ("httpx", "supervisor")
SETTINGS = ("pydantic_settings", "msgspec")
#: No everyday command may import these libraries: migrations, other databases, state, Dagster, Spark.
NEVER = (
    *("alembic", "mako", "sqlalchemy.dialects.postgresql", "rocksdict", "numpy", "pandas", "pyarrow"),
    *("pyiceberg", "pyspark", "dagster", "watchfiles", "prometheus_client", "holdfast.processors.proof"),
    # Everyday commands can do without these libraries: they use Python's standard library instead, or load the library
    # only to print a message.
    *("httpx", "httpcore", "supervisor", "structlog", "greenlet"),
)
#: `query` and `plan` use the code of all verbs (operator commands). So they also load RocksDB, and the module that
#: proves (tests) a version before its deploy.
OF_QUERY = tuple(each for each in NEVER if each not in ("rocksdict", "holdfast.processors.proof"))
#: Command line -> exit code, for commands that fail in this test because no log file and no broker exist.
ENDS_WITH = {
    "logs fleet": EXIT_BAD_CONFIGURATION,
    "plan restart fleet": EXIT_BROKER_UNAVAILABLE,
    "query fleet N14228": EXIT_BROKER_UNAVAILABLE,
}
#: Command line -> modules that it must not import; modules below them count, too.
NOT_IMPORTED = {
    "--version": ("rich", *ENGINE, *DATABASE, *KAFKA, *WORKERS, *SETTINGS, *NEVER),
    "--help": (*ENGINE, *DATABASE, *KAFKA, *WORKERS, *SETTINGS, *NEVER),
    "query --help": (*ENGINE, *DATABASE, *KAFKA, *WORKERS, *NEVER),
    "snapshot --help": (*ENGINE, *DATABASE, *KAFKA, *WORKERS, *NEVER),
    "config": (*ENGINE, *DATABASE, *KAFKA, *WORKERS, *NEVER),
    "logs fleet": (*ENGINE, *DATABASE, *KAFKA, *WORKERS, *NEVER),
    "history fleet": (*ENGINE, *KAFKA, *WORKERS, *NEVER),
    "apply list": (*ENGINE, *KAFKA, *WORKERS, *NEVER),
    "incidents list": (*ENGINE, *KAFKA, *WORKERS, *NEVER),
    "top": (*ENGINE, *KAFKA, "httpx", *NEVER),
    "status": (*KAFKA, *NEVER),
    "plan restart fleet": ("kafka", *OF_QUERY),
    "query fleet N14228": ("kafka", *OF_QUERY),
}
IMPORTED = """
import contextlib, io, json, sys
from holdfast.orchestration.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    code = main(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]))
"""

LISTED: dict[str, Any] = typer.main.get_group(app).commands
REAL: dict[str, Any] = loaded(app).commands
LAZY = [name for name, command in LISTED.items() if isinstance(command, LazyCommand)]


def first_line(command: Any) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())


def test_most_commands_are_lazy_and_all_are_there() -> None:
    assert list(LISTED) == list(REAL)
    assert len(LAZY) > 10


@pytest.mark.parametrize("name", LAZY)
def test_the_listed_line_of_help_is_that_of_the_command(name: str) -> None:
    assert LISTED[name].help == first_line(REAL[name])
    assert REAL[name].name == name
    assert not isinstance(REAL[name], LazyCommand)


def test_the_help_of_the_command_line_lists_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    words = capfd.readouterr().out.split()
    assert [name for name in REAL if name not in words] == []


def test_the_help_of_a_lazy_command_shows_its_real_options(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "deploy", "--help"]) == 0
    shown = capfd.readouterr().out
    assert "apply deploy [OPTIONS]" in shown
    assert {"--timeout", "--drop", "--plan", "--yes", "--json"} <= set(re.findall(r"--[a-z]+", shown))


def every_command(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The words of each command with its click object, subcommands included."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from every_command(below, *words, name)


def test_no_name_of_an_option_is_cut_in_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 80)
    lines, missing = 0, []
    for words, command in every_command(loaded(app)):
        assert main([*words, "--help"]) == 0
        shown = capfd.readouterr().out
        lines += len(shown.splitlines())
        names = [name for each in command.params for name in each.opts if name.startswith("--")]
        missing += [(*words, name) for name in names if not re.search(rf"{name}(?![a-z-])", shown)]
    assert lines > 500
    assert missing == []


def test_the_demo_says_how_many_flights_months_have() -> None:
    (months,) = [each for each in REAL["demo"].params if each.name == "months"]
    assert f"2 have {flights_of(2):,} flights, 12 have {flights_of(12):,}" in months.help


def test_a_mistyped_command_is_answered_with_the_nearest(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["statsu"]) == 64
    assert "status" in capfd.readouterr().err


def test_the_version_is_that_of_the_package(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"holdfast {holdfast.__version__}\n"


def test_the_shell_completes_names_and_options_of_lazy_commands() -> None:
    program = "import sys; sys.argv[0] = 'holdfast'; from holdfast.orchestration.cli import main; main([])"

    def completed(words: str) -> str:
        environment = {
            "_HOLDFAST_COMPLETE": "complete_bash",
            "COMP_WORDS": f"holdfast {words}",
            "COMP_CWORD": str(len(words.split())),
            "PATH": "/usr/bin:/bin",
        }
        ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        return ran.stdout

    assert completed("incid").split() == ["incidents"]
    assert "deploy" in completed("apply dep").split()


@pytest.mark.slow
@pytest.mark.parametrize("words", variants(reversed(NOT_IMPORTED), tested=5))
def test_a_command_imports_only_what_it_needs(words: str, tmp_path: Path) -> None:
    """Imports are most of a daily command's CPU time; `docs/commands.md` has the seconds."""
    registry = Registry(f"sqlite:///{tmp_path / 'registry.db'}")
    registry.migrate()
    registry.close()
    environment = {"HOLDFAST_HOME": str(tmp_path), "HOLDFAST_CACHE": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", IMPORTED, *words.split()]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    code, imported = json.loads(ran.stdout.splitlines()[-1])
    assert code == ENDS_WITH.get(words, 0), ran.stderr
    found = [name for name in imported for each in NOT_IMPORTED[words] if name == each or name.startswith(f"{each}.")]
    assert found == []


def test_a_command_leaves_pythons_search_for_garbage_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    former, callbacks = gc.get_threshold(), list(gc.callbacks)
    assert main(["--version"]) == 0
    assert (gc.get_threshold(), gc.callbacks) == (former, callbacks)
    assert capfd.readouterr().out.startswith("holdfast ")


OWN_PROCESS = """
import gc, sys
from holdfast.orchestration.cli import main
sys.argv = ["holdfast", "--version"]
print(main(), gc.get_threshold(), gc.callbacks, gc.get_freeze_count() > 1000)
"""


@pytest.mark.slow
def test_the_end_of_a_process_searches_no_garbage() -> None:
    """A process ends without Python's last garbage collection, which takes a fifth of a daily command's CPU time."""
    ran = subprocess.run([sys.executable, "-c", OWN_PROCESS], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == f"0 {gc.get_threshold()} [] True"


def test_the_first_search_for_garbage_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    former, seen = gc.get_threshold(), []

    def look(*_: object) -> None:
        seen.append(gc.get_threshold())
        gc.collect()
        seen.append(gc.get_threshold())

    monkeypatch.setattr("holdfast.orchestration.cli.app", lambda **_: look())
    assert main(["--version"]) == 0
    assert seen == [(500_000, *former[1:]), former]
