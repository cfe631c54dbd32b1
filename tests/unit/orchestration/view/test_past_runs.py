"""Dagster's runs in `holdfast history`, as Dagster's webserver reports them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.infra.settings import load_settings
from holdfast.orchestration.view import past_runs
from holdfast.orchestration.view.past_runs import PastRun, read_runs

RUN = {
    "runId": "db38a194",
    "status": "SUCCESS",
    "jobName": "__ASSET_JOB",
    "creationTime": 10.5,
    "startTime": 11.0,
    "endTime": None,
    "tags": [{"key": "processor", "value": "fleet"}],
    "assetSelection": None,
    "assetCheckSelection": [{"name": "all_owned", "assetKey": {"path": ["operations", "orphans"]}}],
}
ANSWER = {"runsOrError": {"results": [RUN]}}
WITHOUT_DAGSTER = """
import json, sys
from holdfast.infra.settings import load_settings
from holdfast.orchestration.view import past_runs
past_runs.ask = lambda *_, **__: json.loads(sys.argv[1])
print(len(past_runs.read_runs(load_settings(), 10)), [name for name in sys.modules if name.startswith("dagster")])
"""


def test_without_a_dagster_home_there_are_no_runs_and_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_runs, "ask", None)
    assert read_runs(load_settings(home=tmp_path), 10) == ()


def test_the_webservers_answer_becomes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(home=tmp_path)
    settings.paths.dagster.mkdir()
    (settings.paths.dagster / "dagster.yaml").touch()
    asked: list[object] = []

    def ask(_: object, query: str, **variables: object) -> object:
        asked.append(variables)
        return ANSWER

    monkeypatch.setattr(past_runs, "ask", ask)
    orphans = (("operations", "orphans"), "all_owned")
    expected = PastRun("db38a194", "success", "__ASSET_JOB", 10.5, 11.0, None, {"processor": "fleet"}, (), (orphans,))
    assert read_runs(settings, 10) == (expected,)
    assert asked == [{"limit": 10}]


@pytest.mark.slow
def test_where_the_webserver_answers_dagster_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "dagster.yaml").touch()
    command = [sys.executable, "-c", WITHOUT_DAGSTER, json.dumps(ANSWER)]
    environment = {"HOLDFAST_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("1 []\n", "")
