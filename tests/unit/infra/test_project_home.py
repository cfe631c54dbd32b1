"""A home folder belongs to one project and must be writable."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.home import HomeNotUsable, claim_home
from holdfast.infra.settings import Settings, load_settings


def project(folder: Path, home: str) -> Settings:
    folder.mkdir(exist_ok=True)
    (folder / "holdfast.toml").write_text(f"home = {home!r}\n")
    return load_settings(project=folder)


def test_a_second_project_on_a_home_is_refused_with_both_names(tmp_path: Path) -> None:
    home = str(tmp_path / "shared")
    claim_home(project(tmp_path / "one", home))
    with pytest.raises(HomeNotUsable) as refused:
        claim_home(project(tmp_path / "two", home))
    assert f"belongs to the project {tmp_path / 'one'}, but this is the project {tmp_path / 'two'}" in str(
        refused.value
    )
    assert refused.value.exit_code == EXIT_BAD_CONFIGURATION
    claim_home(project(tmp_path / "one", home))  # the project that owns the home may claim it again
    claim_home(load_settings(home=home, project=None))  # a command without a project may use any home


def test_a_home_in_its_project_moves_with_it(tmp_path: Path) -> None:
    claim_home(project(tmp_path / "one", ".holdfast"))
    (tmp_path / "one").rename(tmp_path / "moved")
    project(tmp_path / "one", "elsewhere")  # the old folder now contains another project
    claim_home(load_settings(project=tmp_path / "moved"))


def test_the_home_of_a_project_that_is_gone_is_free(tmp_path: Path) -> None:
    home = str(tmp_path / "shared")
    claim_home(project(tmp_path / "one", home))
    (tmp_path / "one" / "holdfast.toml").unlink()
    claim_home(project(tmp_path / "two", home))
    project(tmp_path / "one", home)
    with pytest.raises(HomeNotUsable):
        claim_home(load_settings(project=tmp_path / "one"))


def test_a_damaged_note_is_written_again(tmp_path: Path) -> None:
    settings = project(tmp_path / "one", str(tmp_path / "shared"))
    claim_home(settings)
    settings.paths.project_note.write_text("{")
    claim_home(settings)
    assert str(tmp_path / "one") in settings.paths.project_note.read_text()
    assert settings.paths.is_own(settings.paths.project_note.name)


def test_a_home_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeNotUsable, match="can't be written: Not a directory") as refused:
        claim_home(load_settings(home=tmp_path / "file" / "home"))
    assert refused.value.exit_code == EXIT_BAD_CONFIGURATION
