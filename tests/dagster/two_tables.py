"""Two Spark assets and one job, defined as in a project, for counting JVMs."""

import os
import time
from pathlib import Path

import dagster as dg

from holdfast.orchestration.definitions import EXECUTOR
from holdfast.orchestration.resources import WarehouseResource


@dg.asset
def first(warehouse: WarehouseResource) -> int:
    return int(warehouse.session.range(3).count())


@dg.asset(deps=[first])
def second(warehouse: WarehouseResource) -> int:
    Path(os.environ["TEST_REACHED"]).write_text(str(os.getpid()))
    while Path(os.environ["TEST_HOLD"]).exists():
        time.sleep(0.05)
    return int(warehouse.session.range(5).count())


defs = dg.Definitions([first, second], resources={"warehouse": WarehouseResource()}, executor=EXECUTOR)
