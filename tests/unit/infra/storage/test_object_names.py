"""A folder as an object store: no object's name leads outside the folder, and no object exceeds the size limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.infra.storage import objects as storage
from holdfast.infra.storage.errors import ObjectMissing, ObjectOutside, ObjectTooLarge
from holdfast.infra.storage.objects import FsspecObjects, at_most, is_object_name

HOSTILE = [
    "../victim",
    "a/../../victim",
    "/etc/passwd",
    "a//b",
    "a/./b",
    "..",
    ".",
    "",
    "a\\..\\b",
    "a\0b",
    "a\nb",
    "link/secret",
]


@pytest.fixture
def store(tmp_path: Path) -> FsspecObjects:
    (tmp_path / "store").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "elsewhere" / "secret").write_text("mine")
    (tmp_path / "store" / "link").symlink_to(tmp_path / "elsewhere")
    return FsspecObjects(str(tmp_path / "store"))


@pytest.mark.parametrize("name", [*HOSTILE, "link/secret"])
def test_no_name_leads_outside_of_the_store(store: FsspecObjects, tmp_path: Path, name: str) -> None:
    for act in (
        lambda: store.read(name),
        lambda: list(store.chunks(name)),
        lambda: store.write(name, [b"hostile"]),
        lambda: store.delete([name]),
        lambda: store.sizes(f"{name}/"),
    ):
        with pytest.raises(ObjectOutside, match=r"outside of the checkpoint store .*Nothing was read or changed"):
            act()
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "elsewhere" / "secret").read_text() == "mine"


@given(st.text(max_size=30) | st.lists(st.sampled_from(["..", ".", "", "a", "\\"]), max_size=5).map("/".join))
def test_a_plain_name_stays_below_every_root(name: str) -> None:
    if is_object_name(name):
        assert ".." not in Path(name).parts
        assert not Path(name).is_absolute()


def test_a_read_ends_at_its_limit(store: FsspecObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "READ_BYTES_MAX", 10)
    store.write("exact", [b"x" * 10])
    store.write("large", [b"x" * 11])
    store.write("empty", [])
    assert store.read("exact") == b"x" * 10
    assert store.read("empty") == b""
    with pytest.raises(ObjectTooLarge, match="more than 10 bytes"):
        store.read("large")
    with pytest.raises(ObjectMissing):
        store.read("absent")


@given(st.lists(st.binary(max_size=8), max_size=8), st.integers(0, 40))
def test_no_byte_beyond_the_limit_is_passed_on(pieces: list[bytes], limit: int) -> None:
    taken: list[bytes] = []
    asked = iter(pieces)
    try:
        for piece in at_most("one", asked, limit):
            taken.append(piece)
    except ObjectTooLarge:
        assert sum(map(len, pieces)) > limit
    else:
        assert taken == pieces
    assert sum(map(len, taken)) <= limit
