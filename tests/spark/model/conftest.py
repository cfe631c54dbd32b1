"""The world of modelled lives: a small Spark with a warehouse in memory, and the product on the model's edges."""

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
from holdfast.infra.spark.configuration import session_configuration
from holdfast.infra.warehouse.catalog import open_catalog
from tests.spark.conftest import SharedJvm
from tests.spark.model import seams
from tests.spark.model.life import World
from tests.spark.tuning import INTERPRETED

#: Few rows and one task at a time: whatever costs more than the work itself is off. The second compiler is on, because
#: a test process runs hundreds of lives: it halves the CPU of each.
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


def small_spark(home: Path) -> Settings:
    """Settings of a Spark with a warehouse below this folder."""
    return load_settings(home=home, spark={"master": "local[1]", "conf": {**SMALL, **STATIC}})


def world_on(settings: Settings, spark: object, edges: seams.Seams) -> World:
    """The world on a session, with a second session for the runs beside."""
    other = spark.newSession()  # type: ignore[attr-defined]
    for name, value in itertools.chain(session_configuration(settings).items(), SMALL.items()):
        other.conf.set(name, value)
    edges.catalog = open_catalog(settings)
    return World(spark, other, edges.catalog, edges, settings.paths.warehouse / "data")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    memory = Path("/dev/shm")
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    SharedJvm.stop()  # it has other properties
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        settings = small_spark(Path(folder))
        try:
            spark = SharedJvm.started(settings)
            with seams.held() as edges:
                yield world_on(settings, spark, edges)
        finally:
            SharedJvm.stop()
            structlog.configure(**before)
