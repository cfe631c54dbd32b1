"""Releases (copies of the code of deployed versions): which code is copied, and which copies are kept.

A copy is complete and never changes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from holdfast.infra.database.registry import Registry
from holdfast.infra.paths import Paths
from holdfast.infra.system.rooted import PathOutside
from holdfast.processors.lifecycle.deploy.code_files import Code, code_of
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.deploy.releases import KEPT, ReleaseFailed, ReleaseFolders, release_id
from holdfast.processors.lifecycle.deploy.running import DeployedProcessors
from holdfast.processors.lifecycle.plans.facts.shape import Shape, from_document
from holdfast.processors.lifecycle.plans.stages import MakeRelease
from holdfast.processors.lifecycle.ports import World

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SHAPE = Shape("v1", {"orders": 2}, (), ())


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    registry = Registry(f"sqlite:///{tmp_path / 'registry.db'}")
    registry.migrate()
    yield registry
    registry.close()


@pytest.fixture
def folders(registry: Registry, tmp_path: Path) -> ReleaseFolders:
    return ReleaseFolders(registry.releases, Paths(tmp_path / "home"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's package with a processor definition."""
    place = tmp_path / "mine" / "shop_of_mine"
    (place / "streams").mkdir(parents=True)
    (place / "__init__.py").write_text("")
    (place / "streams" / "__init__.py").write_text("")
    (place / "streams" / "orders.py").write_text("application = None\n")
    (place / "rates.json").write_text("{}")
    (place / "__pycache__").mkdir()
    (place / "__pycache__" / "old.pyc").write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    yield place
    sys.modules.pop("shop_of_mine", None)


def make(folders: ReleaseFolders, code: Code, version: str = "v1", now: datetime = NOW) -> Path:
    shape = Shape(version, {"orders": 2}, (), ())
    made = folders.make("orders", release_id(version, code.digest), code, shape, now)
    assert made.folder is not None
    return Path(made.folder)


def test_a_package_is_copied_whole_without_what_python_made(
    package: Path, folders: ReleaseFolders, registry: Registry
) -> None:
    code = code_of("shop_of_mine.streams.orders:application")
    folder = make(folders, code)
    copied = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert copied == [
        "shop_of_mine/__init__.py",
        "shop_of_mine/rates.json",
        "shop_of_mine/streams/__init__.py",
        "shop_of_mine/streams/orders.py",
    ]
    (known,) = registry.releases.newest("orders")
    assert (known.target, from_document(known.shape)) == ("shop_of_mine.streams.orders:application", SHAPE)


def test_one_module_file_is_copied_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: ReleaseFolders
) -> None:
    (tmp_path / "lonely_orders.py").write_text("application = None\n")
    (tmp_path / "secrets.txt").write_text("not for copies")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = make(folders, code_of("lonely_orders:application"))
    assert [path.name for path in folder.iterdir()] == ["lonely_orders.py"]


def project_of(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names_of(code: Code) -> list[str]:
    return [each.name for each in code.files]


def test_modules_beside_a_single_file_are_copied_with_it_and_change_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: ReleaseFolders
) -> None:
    project_of(
        tmp_path,
        {
            "solo_orders.py": "import json, solo_rates\nfrom solo_totals.sums import add\n",
            "solo_rates.py": "def later():\n    import importlib as i\n    i.import_module('solo_taxes')\n",
            "solo_taxes.py": "RATE = 1\n",
            "solo_totals/__init__.py": "",
            "solo_totals/sums.py": "add = sum\n",
            "solo_unused.py": "",
        },
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code = code_of("solo_orders:application")
    expected = ["solo_orders.py", "solo_rates.py", "solo_taxes.py", "solo_totals/__init__.py", "solo_totals/sums.py"]
    assert names_of(code) == expected
    first = make(folders, code)
    (tmp_path / "solo_taxes.py").write_text("RATE = 2\n")
    second = make(folders, code_of("solo_orders:application"))
    assert first != second
    assert (first / "solo_taxes.py").read_text() == "RATE = 1\n", "a rollback uses the helper of then"
    clean = subprocess.run(
        [sys.executable, "-P", "-c", "import sys; sys.path.insert(0, sys.argv[1]); import solo_orders", str(first)],
        cwd="/",
        check=False,
    )
    assert clean.returncode == 0, "the copy imports all that it needs from itself"


def test_data_files_that_the_code_opens_beside_itself_are_copied_and_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = "from pathlib import Path\nHERE = Path(__file__).parent\n"
    project_of(
        tmp_path,
        {
            "beside_orders.py": f"{here}A = (HERE / 'beside.json', HERE / 'beside_data' / 'eu.csv')\n"
            "B = HERE / '.env.json'\n"
            "import beside_plain\n",
            "beside_plain.py": "rates = open('working.csv')\n",
            "beside.json": "{}",
            "beside_data/eu.csv": "1",
            "working.csv": "2",
            "secrets.json": "{}",
        },
    )
    (tmp_path / ".env.json").write_text("{}")
    monkeypatch.syspath_prepend(str(tmp_path))
    code = code_of("beside_orders:application")
    assert names_of(code) == ["beside.json", "beside_data/eu.csv", "beside_orders.py", "beside_plain.py"]
    assert code.left == ("working.csv",)


def test_linked_folders_and_modules_are_copied_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: ReleaseFolders
) -> None:
    project_of(
        tmp_path,
        {
            "shared/rules.py": "LIMIT = 1\n",
            "shared/v2.py": "application = None\n",
            "mine/linked_shop/__init__.py": "",
        },
    )
    (tmp_path / "mine" / "linked_shop" / "common").symlink_to(tmp_path / "shared")
    # this link leads to the folder that contains the link
    (tmp_path / "shared" / "again").symlink_to(tmp_path / "shared")
    (tmp_path / "mine" / "linked_orders.py").symlink_to(tmp_path / "shared" / "v2.py")
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    names = names_of(code_of("linked_shop.orders:application"))
    assert names == ["linked_shop/__init__.py", "linked_shop/common/rules.py", "linked_shop/common/v2.py"]
    folder = make(folders, code_of("linked_orders:application"))
    assert [each.name for each in folder.iterdir()] == ["linked_orders.py"]


def test_a_copy_that_was_torn_is_made_again(package: Path, folders: ReleaseFolders) -> None:
    code = code_of("shop_of_mine.streams.orders:application")
    folder = make(folders, code)
    (folder / "shop_of_mine" / "rates.json").unlink()
    (folder / "shop_of_mine" / "streams" / "orders.py").write_text("half")
    assert make(folders, code) == folder
    assert (folder / "shop_of_mine" / "rates.json").read_text() == "{}"
    assert (folder / "shop_of_mine" / "streams" / "orders.py").read_text() == "application = None\n"
    (folder / "shop_of_mine" / "__pycache__").mkdir()
    inode = folder.stat().st_ino
    assert make(folders, code).stat().st_ino == inode, "what Python adds tears nothing"
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("holdfast.processors.definitions.fleet:application", "part of Holdfast"),
        ("msgspec:application", "installed package"),
        ("json:application", "installed package"),
        ("sys:application", "no file"),
        ("nowhere_to_be_found:application", "no file"),
    ],
)
def test_what_is_not_the_users_own_is_not_copied_and_why(
    target: str, words: str, folders: ReleaseFolders, registry: Registry
) -> None:
    code = code_of(target)
    assert words in code.why_not
    made = folders.make("orders", "v1", code, SHAPE, NOW)
    assert (made.folder, made.release_id) == (None, "v1")


def test_other_files_are_another_release_and_the_same_are_the_same(package: Path, folders: ReleaseFolders) -> None:
    target = "shop_of_mine.streams.orders:application"
    first = make(folders, code_of(target))
    assert make(folders, code_of(target)) == first
    (package / "rates.json").write_text('{"usd": 1}')
    second = make(folders, code_of(target))
    assert second != first
    assert (first / "shop_of_mine" / "rates.json").read_text() == "{}"


def test_files_that_changed_since_the_plan_are_refused(package: Path, folders: ReleaseFolders) -> None:
    planned = code_of("shop_of_mine.streams.orders:application")
    (package / "rates.json").write_text('{"usd": 1}')
    with pytest.raises(ReleaseFailed, match="changed since the plan was made"):
        folders.make("orders", release_id("v1", planned.digest), code_of(planned.target), SHAPE, NOW)
    with pytest.raises(ReleaseFailed, match="changed while they were copied"):
        folders.make("orders", release_id("v1", planned.digest), planned, SHAPE, NOW)
    assert not list(folders._paths.releases("orders").iterdir())


def test_a_copy_that_was_broken_off_is_made_anew(package: Path, folders: ReleaseFolders) -> None:
    code = code_of("shop_of_mine.streams.orders:application")
    half = folders._paths.releases("orders") / f"{release_id('v1', code.digest)}.part1"
    half.mkdir(parents=True)
    assert (make(folders, code) / "shop_of_mine" / "rates.json").is_file()


def test_copies_that_killed_deploys_left_do_not_add_up(package: Path, folders: ReleaseFolders) -> None:
    code, releases = code_of("shop_of_mine.streams.orders:application"), folders._paths.releases("orders")
    yesterday = time.time() - 90_000.0
    for name in ("v0-0a1b2c3d.part71", "v1-0a1b2c3d.part72", "v0.part1-0a1b2c3d", "v0-0a1b2c3d.part73"):
        (releases / name / "shop_of_mine").mkdir(parents=True)
        if not name.endswith("73"):
            os.utime(releases / name, (yesterday, yesterday))
    made = make(folders, code)
    left = {each.name for each in releases.iterdir()}
    assert left == {made.name, "v0.part1-0a1b2c3d", "v0-0a1b2c3d.part73"}, "a release, and one that is being copied"


def test_the_oldest_are_deleted_but_never_what_worked_last(
    package: Path, folders: ReleaseFolders, registry: Registry
) -> None:
    made = {}
    for number in range(KEPT + 3):
        (package / "rates.json").write_text(str(number))
        code = code_of("shop_of_mine.streams.orders:application")
        name = release_id("v1", code.digest)
        made[name] = make(folders, code, now=NOW + timedelta(seconds=number))
        if number == 0:
            registry.releases.works("orders", name, NOW + timedelta(seconds=0.5))
    names = list(made)
    assert folders.prune("orders", [names[-1]]) == 3
    assert [made[name].is_dir() for name in names] == [True, *[False] * 3, *[True] * (KEPT - 1)]
    working = registry.releases.working("orders")
    assert working is not None
    assert working.release_id == names[0]


def record(registry: Registry, name: str, second: int, *, worked: bool = False) -> None:
    moment = NOW + timedelta(seconds=second)
    registry.releases.record("orders", name, code_version=name, target="a:b", folder=None, shape={}, now=moment)
    if worked:
        registry.releases.works("orders", name, moment, newest=True)


@pytest.mark.parametrize("kept", [1, KEPT])
def test_deploys_that_were_refused_push_out_no_release_that_worked(
    registry: Registry, tmp_path: Path, kept: int
) -> None:
    folders = ReleaseFolders(registry.releases, Paths(tmp_path / "home"), kept)
    record(registry, "v1", 1, worked=True)
    record(registry, "v2", 2, worked=True)
    for number in range(3 * KEPT):
        name = f"refused{number}"
        record(registry, name, 10 + number)
        folders.prune("orders", [name])
        left = {each.release_id for each in registry.releases.newest("orders")}
        assert {"v1", "v2", name} <= left, "the undo of the plan that made v2 is to run v1"
        assert len(left) <= max(kept, 2) + 1, "refused deploys do not add up"


def test_the_settings_of_a_pruned_release_go_with_it(registry: Registry, tmp_path: Path) -> None:
    paths = Paths(tmp_path / "home")
    book = DeployedSettings(paths)
    for number in range(1, 5):
        record(registry, f"v{number}", number, worked=True)
        book.record("orders", f"v{number}", {"HOLDFAST_MEMORY_MAX_MB": "256"})
    assert ReleaseFolders(registry.releases, paths, 2).prune("orders", []) == 2
    there = sorted(path.name for path in (paths.releases("orders") / ".settings").iterdir())
    assert there == ["v3.json", "v4.json"]
    assert book.read("orders", "v1") is None
    assert book.read("orders", "v4") is not None


def test_each_rollback_goes_back_in_time_and_never_to_what_was_rolled_back(registry: Registry) -> None:
    book = registry.releases
    for number in (1, 2, 3):
        record(registry, f"v{number}", number, worked=True)
    went = []
    for second in (10, 11):
        before = book.before("orders")
        assert before is not None
        went.append(before.release_id)
        book.works("orders", before.release_id, NOW + timedelta(seconds=second))
    assert went == ["v2", "v1"]
    assert book.before("orders") is None, "v2 and v3 are younger than v1"
    record(registry, "v4", 20, worked=True)
    assert book.before("orders") == book.find("orders", "v1"), "what ran before v4, not v3, which was rolled back"


def test_a_refused_deploy_of_former_files_does_not_make_them_the_newest(registry: Registry) -> None:
    for number in (1, 2):
        record(registry, f"v{number}", number, worked=True)
    record(registry, "v1", 3)  # the files of v1 are deployed again, and the proof (trial run) refuses them
    before = registry.releases.before("orders")
    assert before is not None
    assert before.release_id == "v1"


def test_what_a_rollback_would_run_is_kept_even_when_it_ran_long_ago(registry: Registry, tmp_path: Path) -> None:
    for number in range(1, 7):
        record(registry, f"v{number}", number, worked=True)
    for second, name in enumerate(("v6", "v5", "v4", "v2"), start=10):
        registry.releases.works("orders", name, NOW + timedelta(seconds=second))
    ReleaseFolders(registry.releases, Paths(tmp_path / "home"), 2).prune("orders", [])
    left = {each.release_id for each in registry.releases.newest("orders")}
    assert left == {"v2", "v4", "v1"}, "v1 is the one before v2"


def test_the_release_of_a_version_is_the_one_that_worked(registry: Registry) -> None:
    book = registry.releases
    for number, name in enumerate(("v1-a", "v1-b")):
        book.record(
            "orders",
            name,
            code_version="v1",
            target="orders:application",
            folder=None,
            shape={},
            now=NOW + timedelta(seconds=number),
        )
    assert book.of_version("orders", "v1") == book.find("orders", "v1-b")
    book.works("orders", "v1-a", NOW + timedelta(seconds=9))
    assert book.of_version("orders", "v1") == book.find("orders", "v1-a")
    assert book.of_version("orders", "v2") is None
    assert book.working("other") is None


@pytest.mark.parametrize(
    ("processor", "release", "folder"),
    [
        ("orders", "old", "{home}"),
        ("orders", "old", "{home}/state"),
        ("orders", "old", "{victim}"),
        ("orders", "old", "{home}/releases/orders"),
        ("orders", "old", "{home}/releases/orders/../../state"),
        ("orders", "old", "{home}/releases/other/old"),
        ("orders", "../../state", "{home}/state"),
        ("..", "state", "{home}/state"),
        ("orders", "link", "{home}/releases/orders/link"),
        ("orders", "old", "a\0b"),
        ("orders", "old", ""),
    ],
)
def test_a_row_of_the_registry_deletes_no_folder_but_its_releases_own(
    folders: ReleaseFolders, registry: Registry, tmp_path: Path, processor: str, release: str, folder: str
) -> None:
    home, victim = tmp_path / "home", tmp_path / "victim"
    kept = [victim / "mine", home / "state" / "mine", home / "releases" / "other" / "old" / "mine"]
    for file in kept:
        file.parent.mkdir(parents=True)
        file.touch()
    (home / "releases" / "orders").mkdir()
    (home / "releases" / "orders" / "link").symlink_to(victim)
    named = folder.format(home=home, victim=victim)
    for number in range(KEPT + 1):
        registry.releases.record(
            processor,
            f"new{number}" if number else release,
            code_version="v1",
            target="a:b",
            folder=None if number else named,
            shape={},
            now=NOW + timedelta(seconds=number),
        )
    with capture_logs() as said:
        assert folders.prune(processor, []) == 1
    assert all(file.exists() for file in kept)
    assert registry.releases.find(processor, release) is None
    assert [each["seen"] for each in said] == [str(Path(named))]


def test_a_release_whose_name_leads_elsewhere_is_not_copied(
    package: Path, folders: ReleaseFolders, registry: Registry
) -> None:
    code = code_of("shop_of_mine.streams.orders:application")
    with pytest.raises(PathOutside):
        make(folders, code, version="../../victim")


def test_each_deploy_prunes_before_it_copies_so_that_refused_ones_do_not_add_up(
    package: Path, registry: Registry, tmp_path: Path
) -> None:
    world = World(cast(Any, None), cast(Any, None), registry, Paths(tmp_path / "home"))
    target = "shop_of_mine.streams.orders:application"
    code = lambda name: (code_of(target), SHAPE)  # noqa: E731
    runner = DeployedProcessors(world, cast(Any, None), "me", code, cast(Any, None), releases_kept=2)
    record(registry, "v0", 1, worked=True)
    record(registry, "vx", 2)
    registry.record_deployment("orders", "vx", ("0",), NOW)  # vx never worked, but is the deployed version, so it stays
    for number in range(5):
        (package / "rates.json").write_text(str(number))
        planned = release_id("v1", code_of(target).digest)
        runner.make_release("orders", MakeRelease("", planned, "v1"))  # a copy only: this version is not proven
        left = {each.release_id for each in registry.releases.newest("orders")}
        assert {"v0", "vx", planned} <= left
        assert len(left) <= 4
    assert len(list((tmp_path / "home" / "releases" / "orders").iterdir())) == 2
