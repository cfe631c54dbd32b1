"""Fixtures for random sequences of actions on a store: a Spark with a warehouse in memory, and the patched product.

Such a sequence is called the life of the store.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from holdfast.infra.settings import Settings, load_settings
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


def small_spark(home: Path) -> Settings:
    """Settings of a Spark with a warehouse below this folder."""
    return load_settings(home=home, spark={"master": "local[1]", "conf": {**SMALL, **STATIC}})


def world_on(settings: Settings, spark: Any, edges: seams.Seams, *, few_lives: bool = False) -> World:
    """Make the objects that all lives (action sequences) share on this Spark session.

    A second session is for concurrent runs.
    """
    other = spark.newSession()
    for session in (spark, other):
        for name, value in itertools.chain(session_configuration(settings).items(), SMALL.items()):
            session.conf.set(name, value)
    return World(spark, other, open_catalog(settings), edges, settings.paths.warehouse / "data", 2 if few_lives else 4)


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The objects that all lives (random sequences of actions on a store) share.

    A thorough run has many lives, so it starts a separate JVM. Other runs have two lives, and use the JVM of the other
    test files.
    """
    memory = Path("/dev/shm")
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    many = request.config.getoption("--tier") == "thorough"
    if many:
        SharedJvm.stop()  # stop the shared JVM, because the model's JVM needs other Spark properties
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        settings = small_spark(Path(folder))
        try:
            spark = SharedJvm.started(settings) if many else request.getfixturevalue("session_for")(settings)
            with seams.held() as edges:
                yield world_on(settings, spark, edges, few_lives=not many)
        finally:
            if many:
                SharedJvm.stop()
            structlog.configure(**before)
