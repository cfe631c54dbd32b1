"""After `holdfast up` and a deploy, every asset of a complete installation becomes green without a click."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.infra.settings import PROJECT, Settings, load_settings
from holdfast.orchestration.commands.reports.status import describe
from holdfast.orchestration.view.asset_page import AssetPage, read_pages

pytestmark = pytest.mark.thorough

#: It takes five minutes on a quiet machine; a busy one runs Spark several times slower.
PATIENCE_S = 1_500.0


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_PROCESSORS", '["holdfast.processors.definitions.fleet:application"]')
    try:
        yield load_settings()
    finally:
        run("down")


def run(*words: str) -> str:
    """Run one `holdfast` command and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.orchestration.cli", *words],
        cwd=PROJECT,
        env={**os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def is_green(page: AssetPage) -> bool:
    """Whether Dagster's page shows the asset as green: all time partitions are materialised, and each check passed."""
    partitions = page.partitions
    whole = partitions is None or partitions.num_materialized == partitions.num_partitions
    passed = all(each.last is not None and each.last.status == "SUCCEEDED" for each in page.checks)
    return page.materialized and whole and passed


def test_all_assets_are_green_without_a_click(settings: Settings) -> None:
    run("up")
    run("apply", "deploy", "fleet")
    deadline = time.monotonic() + PATIENCE_S
    grey = ["not asked yet"]
    while grey:
        assert time.monotonic() < deadline, f"still not green: {grey}; {describe(settings)['reasons']}"
        pages = read_pages(settings)
        grey = ["no webserver answers"] if not pages else [each.name for each in pages if not is_green(each)]
        time.sleep(1.0)
    document = describe(settings)
    assert (document["colour"], document["reasons"]) == ("green", [])
    assert "All is green." in run("status")
