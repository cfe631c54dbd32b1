"""The demo starts with an empty home folder, and deletes no home folder that is not its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.infra.paths import Paths
from holdfast.infra.settings import WARM, SparkSettings, load_settings
from holdfast.infra.system.process import start_mark
from holdfast.orchestration.demo.home import MARKER, HomeNotFree, demo_settings, prepare_home


def test_the_demo_has_a_home_of_its_own_beside_an_installation(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "state").mkdir(parents=True)
    settings = demo_settings(load_settings(home=home))
    prepare_home(settings.paths)
    assert settings.home == home / "demo"
    assert sorted(path.name for path in home.iterdir()) == ["demo", "state"]


@pytest.mark.parametrize(("named", "used"), [("local[*]", WARM), ("sc://one:15002", "sc://one:15002")])
def test_one_spark_serves_all_steps(named: str, used: str) -> None:
    assert demo_settings(load_settings(spark=SparkSettings(master=named))).spark.master == used


def test_a_new_home_is_made_and_marked(tmp_path: Path) -> None:
    assert not prepare_home(Paths(tmp_path / "home"))
    assert [path.name for path in (tmp_path / "home").iterdir()] == [MARKER]


def test_a_former_demos_home_is_emptied(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "home")
    prepare_home(paths)
    paths.state.mkdir()
    assert prepare_home(paths)
    assert [path.name for path in paths.home.iterdir()] == [MARKER]


def test_a_home_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "home")
    paths.state.mkdir(parents=True)
    with pytest.raises(HomeNotFree, match="holds state"):
        prepare_home(paths)
    assert paths.state.is_dir()


def test_a_home_in_use_is_left_alone(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "home")
    prepare_home(paths)
    paths.kafka.mkdir()
    me = {"bootstrap": "127.0.0.1:1", "pid": os.getpid(), "mark": start_mark(os.getpid())}
    paths.broker_address.write_text(json.dumps(me))
    with pytest.raises(HomeNotFree, match=f"a broker .process {os.getpid()}"):
        prepare_home(paths)
    assert paths.broker_address.exists()
