"""Fixtures for random action sequences (lives): a small Spark with a warehouse in memory, and the patched product."""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.setup.java import BRIEF
from holdfast.infra.spark.configuration import session_configuration
from holdfast.infra.warehouse.catalog import open_catalog
from tests.spark.conftest import SharedJvm
from tests.spark.model import seams
from tests.spark.model.life import World
from tests.spark.tuning import INTERPRETED

#: Properties for few rows and one task at a time: features that cost more than the work itself are off.
SMALL = {
    **INTERPRETED,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.debug.maxToStringFields": "2",
}
STATIC = {
    "spark.broadcast.compress": "false",
    "spark.shuffle.compress": "false",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


#: Java's second compiler halves the CPU time of a life when a process runs hundreds of lives. For fifty lives it costs
#: more than it saves.
FIFTY_LIVES = {"spark.driver.defaultJavaOptions": f"{BRIEF} -XX:ReservedCodeCacheSize=256m"}


def small_spark(home: Path, *, fifty_lives: bool = False) -> Settings:
    """Settings of a Spark session with a warehouse below this folder."""
    java = FIFTY_LIVES if fifty_lives else {}
    return load_settings(home=home, spark={"master": "local[1]", "conf": {**SMALL, **STATIC, **java}})


def world_on(settings: Settings, spark: object, edges: seams.Seams, *, fifty_lives: bool = False) -> World:
    """The shared world on a Spark session, with a second session for concurrent runs."""
    other = spark.newSession()  # type: ignore[attr-defined]
    for name, value in itertools.chain(session_configuration(settings).items(), SMALL.items()):
        other.conf.set(name, value)
    return World(
        spark, other, open_catalog(settings), edges, settings.paths.warehouse / "data", 2 if fifty_lives else 4
    )


@pytest.fixture(scope="module")
def world(pytestconfig: pytest.Config) -> Iterator[World]:
    memory = Path("/dev/shm")
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    SharedJvm.stop()  # stop the JVM that other Spark tests share, because it has other properties
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        fifty_lives = pytestconfig.getoption("--tier") != "thorough"
        settings = small_spark(Path(folder), fifty_lives=fifty_lives)
        try:
            spark = SharedJvm.started(settings)
            with seams.held() as edges:
                yield world_on(settings, spark, edges, fifty_lives=fifty_lives)
        finally:
            SharedJvm.stop()
            structlog.configure(**before)
