"""Only Holdfast's user may read its files.

New files get a private umask. A start makes the files of an older home private.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from holdfast.infra.paths import Paths
from holdfast.infra.settings import load_settings
from holdfast.infra.system.privacy import GROUP_UMASK, UMASK, keep_private, mend_home, private_files, process_umask


def modes(folder: Path) -> dict[str, int]:
    found = {"": stat.S_IMODE(folder.stat().st_mode)}
    for path in sorted(folder.rglob("*")):
        if not path.is_symlink():
            found[path.relative_to(folder).as_posix()] = stat.S_IMODE(path.stat().st_mode)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder whose files were created with the usual umask, so that all users may read them."""
    home = tmp_path / "home"
    for file in ("registry.db", "state/fleet/0/task/000001.sst", "logs/fleet-0.log", "releases/fleet/r1/run.sh"):
        path = home / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
        path.chmod(0o644)
    (home / "releases/fleet/r1/run.sh").chmod(0o755)
    for folder in (home, *(path for path in home.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return home


def test_an_open_home_is_closed_with_a_warning_that_says_what_changed(home: Path) -> None:
    settings = load_settings(home=home)
    with capture_logs() as logs:
        keep_private(settings)
        keep_private(settings)
    (warning,) = logs
    assert warning["log_level"] == "warning"
    assert (warning["home"], warning["former_mode"], warning["changed"]) == (str(home), "0755", len(modes(home)))
    assert [name for name, mode in modes(home).items() if mode & 0o077] == []
    assert modes(home)["releases/fleet/r1/run.sh"] == 0o700


def test_new_files_are_private_in_this_process_and_in_those_it_starts(tmp_path: Path) -> None:
    os.umask(0o022)
    settings = load_settings(home=tmp_path / "home")
    keep_private(settings)
    (settings.home / "logs").mkdir(parents=True)
    (settings.home / "logs" / "one.log").write_text("")
    assert modes(settings.home) == {"": 0o700, "logs": 0o700, "logs/one.log": 0o600}
    assert process_umask() == UMASK


def test_a_group_may_share_a_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_GROUP_ACCESS", "true")
    for path in (home, *home.rglob("*")):
        path.chmod(path.stat().st_mode | 0o020)
    keep_private(load_settings(home=home))
    assert (modes(home)[""], modes(home)["registry.db"]) == (0o770, 0o660)
    assert process_umask() == GROUP_UMASK


def test_a_program_of_a_user_gets_its_umask_back(tmp_path: Path) -> None:
    os.umask(0o022)
    with private_files(load_settings(home=tmp_path / "home")):
        (tmp_path / "ours").write_text("")
    (tmp_path / "theirs").write_text("")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "theirs").stat().st_mode) == 0o644


def test_other_things_in_the_same_folder_are_left_alone(home: Path) -> None:
    for name in ("diary.txt", "photos/one.jpg"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("")
        (home / name).chmod(0o644)
    assert mend_home(Paths(home), UMASK) is not None
    after = modes(home)
    assert (after[""], after["diary.txt"], after["photos/one.jpg"]) == (0o755, 0o644, 0o644)
    assert (after["registry.db"], after["state"], after["logs"]) == (0o600, 0o700, 0o700)
    assert mend_home(Paths(home), UMASK) is None
    (home / "registry.db").unlink()
    (home / "logs").chmod(0o755)
    assert mend_home(Paths(home), UMASK) is None, "without a file that proves it, `logs` may be another program's"
    assert modes(home)["logs"] == 0o755


def test_links_are_not_followed(home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    outside.chmod(0o755)
    (outside / "file").write_text("")
    (outside / "file").chmod(0o644)
    (home / "warehouse").symlink_to(outside)
    (home / "logs" / "link").symlink_to(outside / "file")
    assert mend_home(Paths(home), UMASK) is not None
    assert modes(outside) == {"": 0o755, "file": 0o644}


def test_what_may_not_be_changed_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.chmod

    def refusing(path: Path, mode: int) -> None:
        # This file takes the role of a file of another user. The tests may run as root, which may change all files.
        if path.name == "registry.db":
            raise PermissionError(1, "Operation not permitted")
        real(path, mode)

    monkeypatch.setattr(Path, "chmod", refusing)
    mended = mend_home(Paths(home), UMASK)
    assert mended is not None
    assert mended.left == (home / "registry.db",)


def test_an_absent_and_a_private_home_need_nothing(tmp_path: Path) -> None:
    assert mend_home(Paths(tmp_path / "absent"), UMASK) is None
    (tmp_path / "private").mkdir(mode=0o700)
    assert mend_home(Paths(tmp_path / "private"), UMASK) is None
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty").chmod(0o755)
    assert mend_home(Paths(tmp_path / "empty"), UMASK) is None, "nobody could reach anything in it"
    assert modes(tmp_path / "empty") == {"": 0o700}
