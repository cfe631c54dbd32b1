"""A name never leads to a path outside its folder, whatever characters it contains."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.infra.system.rooted import PathOutside, inside, remove_folder

parts = st.sampled_from(["..", ".", "", "a", "~", "/", "\\", "..\\..", "link", "up", "loop", "\0", "é", "x" * 300])
names = st.lists(parts, min_size=1, max_size=6).map("/".join) | st.text(max_size=40)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, a second folder `victim` outside it, and symbolic links inside it to both."""
    place = tmp_path_factory.mktemp("rooted")
    for folder in ("root/a", "victim/a"):
        (place / folder).mkdir(parents=True)
    (place / "root" / "link").symlink_to(place / "victim")
    (place / "root" / "up").symlink_to("..")
    (place / "root" / "loop").symlink_to("loop")
    (place / "root" / "good").symlink_to("a")
    return place / "root"


@given(names)
def test_a_path_is_below_its_root_or_refused(root: Path, name: str) -> None:
    try:
        path = inside(root, name)
    except PathOutside:
        return
    assert path.resolve().is_relative_to(root.resolve())
    assert path.resolve() != root.resolve()
    assert ".." not in path.relative_to(root).parts


@pytest.mark.parametrize("name", ["", ".", "..", "../victim", "a/../../victim", "/etc", "link", "link/a", "up", "\0"])
def test_what_leads_elsewhere_is_refused_and_stays(root: Path, name: str) -> None:
    with pytest.raises(PathOutside, match=r"Nothing was read, written or deleted.*What to do"):
        remove_folder(root, name)
    assert (root.parent / "victim" / "a").is_dir()
    assert (root / "a").is_dir()


def test_a_root_may_be_a_link_and_a_full_path_may_lie_below_it(root: Path) -> None:
    (root.parent / "home").symlink_to(root)
    assert inside(root.parent / "home", "a") == root.parent / "home" / "a"
    assert inside(root.parent / "home", root / "a") == root / "a"
    assert inside(root, "good") == root / "good"


def test_a_folder_below_goes_with_all_in_it_and_a_missing_one_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    remove_folder(tmp_path, "a")
    remove_folder(tmp_path, "a")
    assert not (tmp_path / "a").exists()
