"""Fixture of the installation that all drills of a run share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.drills import busy_machine
from tests.drills.all_drills import DRILLS
from tests.drills.home import Home, start_home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A started installation in which the processors of all drills are defined."""
    definitions = {each.name: each.definition.format(group=each.name) for each in DRILLS.values()}
    folder = tmp_path_factory.mktemp("drills")
    started = start_home(folder, {**definitions, busy_machine.NAME: busy_machine.TEXT})
    yield started
    started.stop()
