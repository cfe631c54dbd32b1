"""The modules that a start imports. The command line must answer at once.

Workers need no Dagster, Spark or databases.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mechanics.tiers import variants

PROJECT = Path(__file__).resolve().parents[2]
#: Libraries whose import takes at least 0.1 s, or that only an extra installs.
HEAVY = frozenset(
    {
        *("dagster", "dagster_postgres", "dagster_webserver", "pyspark", "sqlalchemy", "alembic", "numpy", "pandas"),
        *("pyarrow", "pyiceberg", "confluent_kafka", "kafka", "rocksdict", "grpc", "s3fs", "fsspec", "botocore"),
        *("psycopg", "httpx", "pydantic", "pydantic_settings", "structlog", "msgspec", "supervisor", "yaml"),
    }
)
#: Which heavy libraries each kind of start may load: the help of the command line, `Application`, a command's help, a
#: worker.
ANSWERS: frozenset[str] = frozenset()
DECLARES = frozenset({"structlog", "msgspec"})
HELPS = frozenset({"structlog", "msgspec", "pydantic"})
WORKS = frozenset({"confluent_kafka", "rocksdict", "pydantic", "pydantic_settings", "structlog", "msgspec"})
COMMAND = "from holdfast.orchestration.cli import main; main({!r}); "
STARTS = [
    pytest.param("import holdfast; dir(holdfast); ", frozenset(), id="import holdfast"),
    pytest.param(COMMAND.format(["--help"]), ANSWERS, id="--help"),
    pytest.param(COMMAND.format(["--version"]), ANSWERS, id="--version"),
    pytest.param("from holdfast import Application; ", DECLARES, id="Application"),
    pytest.param("from holdfast import Application; Application().topology; ", DECLARES, id="Application()"),
    pytest.param("from holdfast import StateClient, AsyncStateClient, StateAway; ", frozenset(), id="StateClient"),
    pytest.param(
        "from holdfast import StateClient; StateClient('shop', home='/nonexistent')._known.workers.read(0); ",
        frozenset({"msgspec"}),
        id="StateClient of this machine",
    ),
    # the imports of a worker before it processes input, without its commands and its HTTP server
    pytest.param(
        "import holdfast.processors.__main__, holdfast.processors.engine.runtime.loop, "
        "holdfast.processors.engine.state.databases.rocksdb, holdfast.infra.kafka.cluster; ",
        WORKS,
        id="a worker",
    ),
    # signature and help of a command, before it does its work
    *variants(
        [
            pytest.param(COMMAND.format([*words, "--help"]), HELPS, id=" ".join(words))
            for words in (
                *(["status"], ["audit"], ["apply", "deploy"], ["up"], ["query"], ["snapshot"], ["doctor"], ["run"]),
                *(["top"], ["incidents"], ["down"], ["spark"], ["deploy"], ["produce"], ["logs"], ["schema"]),
                *(["init"], ["config"], ["scale"]),
            )
        ],
        tested=4,
    ),
]


def loaded_by(code: str) -> set[str]:
    """The heavy libraries that a new interpreter has loaded after it has run this code."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('loaded', *sys.modules)"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in ran.stdout.split("loaded")[-1].split()} & HEAVY


@pytest.mark.parametrize(("code", "allowed"), STARTS)
def test_a_start_loads_only_what_it_needs(code: str, allowed: frozenset[str]) -> None:
    assert loaded_by(code) <= allowed


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--version", "--help"])
def test_the_command_line_answers_within_0_4_cpu_seconds(words: str) -> None:
    def cpu_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", COMMAND.format([words])], cwd=PROJECT, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(cpu_s() for _ in range(5)) < 0.4


def test_the_same_look_finds_what_a_start_loads() -> None:
    assert loaded_by("import holdfast.infra.kafka.clients.client, numpy; ") >= {"confluent_kafka", "numpy"}
