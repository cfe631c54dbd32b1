"""When the daemon replaces a code server, and which edits of the code it notices."""

import os
from pathlib import Path

import pytest

from holdfast.infra.deploy.marks import Mark, write_mark
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.host.daemon.code_servers import (
    AGE_MAX_S,
    AGE_MIN_S,
    EDITED_MIN_S,
    ENDED_AGAIN_S,
    Server,
    outdated,
    to_start,
)
from holdfast.orchestration.host.daemon.loaded_code import LoadedCode, look


@pytest.mark.parametrize(
    ("server", "change", "why"),
    [
        (Server(AGE_MIN_S + 1), None, None),
        (Server(AGE_MIN_S + 1), "/project/a.py changed", "/project/a.py changed"),
        (Server(AGE_MIN_S - 1), None, None),
        (Server(EDITED_MIN_S + 1), "/project/a.py changed", "/project/a.py changed"),
        (Server(EDITED_MIN_S - 1), "/project/a.py changed", None),
        (Server(AGE_MIN_S - 1, error="No module"), None, None),
        (Server(AGE_MIN_S + 1, error="No module"), None, "it could not load its definitions: No module"),
        (Server(AGE_MAX_S - 1), None, None),
        (Server(AGE_MAX_S + 1), None, f"it is {AGE_MAX_S + 1:.0f} s old"),
    ],
)
def test_a_code_server_stays_until_it_is_outdated(server: Server, change: str | None, why: str | None) -> None:
    assert outdated([server], change) == why


def test_one_of_two_is_enough_and_none_is_left_to_dagster() -> None:
    failed = "it could not load its definitions: No module"
    assert outdated([Server(AGE_MIN_S + 1), Server(AGE_MIN_S + 1, error="No module")], None) == failed
    assert outdated([], "/project/a.py changed") is None


@pytest.mark.parametrize(
    ("early", "age_s", "again"),
    [
        (0, 1.0, True),
        (1, ENDED_AGAIN_S - 1, False),
        (1, ENDED_AGAIN_S + 1, True),
        (2, 2 * ENDED_AGAIN_S - 1, False),
        (2, 2 * ENDED_AGAIN_S + 1, True),
        (9, AGE_MIN_S - 1, False),
        (9, AGE_MIN_S + 1, True),
    ],
)
def test_one_that_ended_is_started_again_alone_and_less_often_each_time(early: int, age_s: float, again: bool) -> None:
    ended = Server(age_s, ended="killed by SIGKILL", location="recovery")
    servers = [Server(1.0, location="holdfast"), ended, Server(AGE_MAX_S, error="No module", location="broken")]
    assert to_start(servers, {"recovery": early, "holdfast": 9}) == ([ended] if again else [])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "shop").mkdir(parents=True)
    (folder / "holdfast.toml").write_text('processors = ["shop.orders:app"]\n')
    (folder / "shop" / "orders.py").write_text("app = None\n")
    return folder


@pytest.fixture
def settings(project: Path) -> Settings:
    return load_settings(project=project)


def _change(settings: Settings, before: LoadedCode, *modules: str) -> str | None:
    return look(settings, modules).change_since(before)


def test_edits_of_the_project_are_seen(settings: Settings, project: Path) -> None:
    before = look(settings)
    assert set(before.files) == {str(project / "holdfast.toml"), str(project / "shop" / "orders.py")}
    assert _change(settings, before) is None
    (project / "shop" / "orders.py").write_text("app = 1\n")
    assert _change(settings, before) == f"{project / 'shop' / 'orders.py'} changed"
    (project / "shop" / "orders.py").write_text("app = None\n")
    os.utime(project / "shop" / "orders.py", ns=(1, before.files[str(project / "shop" / "orders.py")][0]))
    assert _change(settings, before) is None
    (project / "shop" / "more.py").touch()
    (project / "holdfast.toml").unlink()
    assert _change(settings, before) == f"{project / 'holdfast.toml'} and 1 more files changed"


def test_what_holdfast_and_tools_write_is_no_edit(settings: Settings, project: Path) -> None:
    before = look(settings)
    for name in (".venv/a.py", "env/pyvenv.cfg", "env/lib/a.py", "shop/__pycache__/orders.py", "events.csv"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    home = settings.paths.releases("orders") / "code" / "orders.py"
    home.parent.mkdir(parents=True)
    home.touch()
    assert _change(settings, before) is None


def test_a_package_elsewhere_is_watched(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere" / "warehouse_of_the_shop"
    elsewhere.mkdir(parents=True)
    (elsewhere / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(elsewhere.parent))
    before = look(settings, ["warehouse_of_the_shop.definitions", "no_such_package"])
    (elsewhere / "definitions.py").touch()
    assert _change(settings, before, "warehouse_of_the_shop.definitions") == f"{elsewhere / 'definitions.py'} changed"


def test_the_modules_beside_a_single_file_are_watched(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "beside"
    (beside / "folder").mkdir(parents=True)
    for name in ("counts_of_the_shop.py", "prices_of_the_shop.py", "folder/more.py"):
        (beside / name).touch()
    monkeypatch.syspath_prepend(str(beside))
    before = look(settings, ["counts_of_the_shop"])
    (beside / "folder" / "more.py").write_text("a = 1\n")
    assert _change(settings, before, "counts_of_the_shop") is None
    (beside / "prices_of_the_shop.py").unlink()
    assert _change(settings, before, "counts_of_the_shop") == f"{beside / 'prices_of_the_shop.py'} changed"


def test_a_first_deployment_changes_the_time_partitions_only_in_another_window(settings: Settings) -> None:
    before = look(settings)
    now = before.starts[0] + 60.0
    write_mark(settings.paths, "orders", Mark(1, "v", ("0",), "deployed", began_at=now))
    assert _change(settings, before) is None
    write_mark(settings.paths, "refunds", Mark(1, "v", ("0",), "deployed", began_at=now - 10 * 86_400))
    assert _change(settings, before) == "the first time partition changed"
