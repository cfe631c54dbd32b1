"""The world of modelled lives: a session of the shared JVM with a warehouse in memory, and the product on the edges."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.warehouse.catalog import open_catalog
from tests.spark.model import seams
from tests.spark.model.life import World
from tests.spark.tuning import INTERPRETED

#: Few rows and one task at a time: whatever costs more than the work itself is off.
SMALL = {**INTERPRETED, "spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}


@pytest.fixture(scope="module")
def world(session_for: Callable[[Settings], Any]) -> Iterator[World]:
    memory = Path("/dev/shm")
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        home = load_settings(home=Path(folder))
        spark = session_for(home)
        for name, value in SMALL.items():
            spark.conf.set(name, value)
        with seams.held() as edges:
            yield World(spark, open_catalog(home), edges)
    structlog.configure(**before)
