"""Spark properties that reduce CPU in tests. Their JVMs live for minutes, and their queries run once on few rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.infra.setup.java import BRIEF, CODE_CACHE

#: Java's second compiler takes half of the CPU of a JVM that runs for minutes. Without that compiler, Java reserves
#: only 48 MiB for compiled code. Spark with Iceberg fills this space within minutes. Then a tenth of the CPU is spent
#: on the search for code to drop.
_ONE_COMPILER = f"{BRIEF} {CODE_CACHE}"
COMPILED_ONCE = {f"spark.{each}.defaultJavaOptions": _ONE_COMPILER for each in ("driver", "executor")}
#: For a query on few rows, interpretation is faster than generating and compiling Java code.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
#: The properties that Spark has by default and that the product uses. With them, Java code is generated.
GENERATED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


@pytest.fixture(scope="session")
def tier_configuration(pytestconfig: pytest.Config) -> dict[str, str]:
    """The Spark properties of this test run. ``--thorough`` generates Java code, as the product does."""
    return COMPILED_ONCE if pytestconfig.getoption("--tier") == "thorough" else COMPILED_ONCE | INTERPRETED


@pytest.fixture
def one_jvm(tuned_jvms: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let all runs of a test share one JVM, which ends with the test.

    `test_one_jvm.py` tests that a run ends its JVM.
    """
    from holdfast.infra.spark import session  # imported here, because it imports pyspark, which takes a second

    kept: list[Any] = []
    stop = session.stop_spark
    monkeypatch.setattr(session, "stop_spark", kept.append)
    yield
    if kept:
        stop(kept[-1])


@pytest.fixture
def tuned_jvms(tier_configuration: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass these properties to every session that the test's settings start, in any process."""
    monkeypatch.setenv("HOLDFAST_SPARK__CONF", json.dumps(tier_configuration))
