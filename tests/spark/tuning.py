"""Spark's properties for tests: less CPU for JVMs that live for minutes and queries that run once, on a few rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.infra.setup.java import BRIEF, CODE_CACHE

#: Half the CPU of a JVM that lives for minutes is its second compiler. Without that one, Java reserves 48 MiB for
#: compiled code. Spark with Iceberg fills them within minutes, and a tenth of its CPU then searches for code to drop.
_ONE_COMPILER = f"{BRIEF} {CODE_CACHE}"
COMPILED_ONCE = {f"spark.{each}.defaultJavaOptions": _ONE_COMPILER for each in ("driver", "executor")}
#: To interpret a query of a few rows takes less time than to generate Java for it and to compile that.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
#: Spark's defaults, which the product keeps.
GENERATED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


@pytest.fixture(scope="session")
def tier_configuration(pytestconfig: pytest.Config) -> dict[str, str]:
    """The properties of this run. ``--thorough`` generates code, as the product does."""
    return COMPILED_ONCE if pytestconfig.getoption("--tier") == "thorough" else COMPILED_ONCE | INTERPRETED


@pytest.fixture
def one_jvm(tuned_jvms: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All runs of a test have one JVM, which ends with the test. `test_one_jvm.py` shows that it ends with its run."""
    from holdfast.infra.spark import session  # it imports pyspark, which takes a second

    kept: list[Any] = []
    stop = session.stop_spark
    monkeypatch.setattr(session, "stop_spark", kept.append)
    yield
    if kept:
        stop(kept[-1])


@pytest.fixture
def tuned_jvms(tier_configuration: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every session that the test's settings start, in this process or another one, has these properties."""
    monkeypatch.setenv("HOLDFAST_SPARK__CONF", json.dumps(tier_configuration))
