"""The registry (Holdfast's database) is copied and put back while processes use it.

A damaged registry is reported by name, moved aside, and replaced.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.infra.database import copies, schema
from holdfast.infra.database.copies import CopyRefused, back_up, put_back
from holdfast.infra.database.errors import RegistryNewerThanCode, RegistryUnavailable
from holdfast.infra.database.registry import Registry

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "registry.db"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}"


@pytest.fixture
def registry(url: str) -> Iterator[Registry]:
    opened = Registry(url)
    opened.migrate()
    deploy(opened, "old")
    yield opened
    opened.close()


def deploy(registry: Registry, name: str) -> None:
    registry.record_deployment(name, "v1", ("0",), NOW)


def names(registry: Registry) -> set[str]:
    return {each.processor for each in registry.deployments()}


def damage(file: Path) -> None:
    """Overwrite all pages but the first one. A copy over a database file that is in use can do such damage."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))


def test_a_copy_is_put_back_under_connections_that_stay_open(registry: Registry, url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    back_up(url, copy)
    assert copy.stat().st_mode & 0o777 == 0o600
    deploy(registry, "new")
    other = Registry(url)
    assert names(other) == {"old", "new"}
    assert put_back(url, copy, NOW, in_use=True) is None
    for each in (registry, other):
        assert names(each) == {"old"}, "connections of before see the copy"
    deploy(other, "later")
    other.close()
    assert names(registry) == {"old", "later"}, "a connection that closes takes nothing with it"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy.db", "home"]
    assert not list((tmp_path / "home").glob(".registry-copy-*"))


@pytest.mark.slow
def test_writers_lose_no_transaction_while_copies_are_put_back(registry: Registry, url: str, tmp_path: Path) -> None:
    """Threads write to the registry (Holdfast's database) while a copy replaces it ten times.

    Each write succeeds, and the file is never damaged.
    """
    copy, failed, stop = tmp_path / "copy.db", list[BaseException](), threading.Event()
    back_up(url, copy)

    def write(name: str) -> None:
        own = Registry(url)
        try:
            while not stop.is_set():
                deploy(own, name)
                assert names(own) <= {"old", "a", "b"}
        except BaseException as seen:
            failed.append(seen)
        finally:
            own.close()

    writers = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for each in writers:
        each.start()
    for _ in range(10):
        put_back(url, copy, NOW, in_use=True)
    stop.set()
    for each in writers:
        each.join()
    assert failed == []
    with closing(sqlite3.connect(tmp_path / "home" / "registry.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_damaged_registry_is_named_and_replaced_by_the_action_of_its_error(
    registry: Registry, file: Path, url: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    back_up(url, copy)
    registry.close()
    damage(file)
    broken = Registry(url)
    with pytest.raises(RegistryUnavailable) as seen:
        broken.deployments()
    assert seen.value.action == copies.what_to_do(file)
    assert "holdfast down" in seen.value.action
    assert "holdfast registry restore COPY" in seen.value.action
    broken.close()
    with pytest.raises(CopyRefused, match="services that have it open run") as refused:
        put_back(url, copy, NOW, in_use=True)
    assert refused.value.action == "Run `holdfast down`, then repeat this command."
    with pytest.raises(RegistryUnavailable, match="can't be read or written"):
        back_up(url, tmp_path / "of-damaged.db")
    aside = put_back(url, copy, NOW, in_use=False)
    assert aside == file.with_name("registry.db.damaged-20260301T030000")
    assert aside.exists()
    again = Registry(url)
    assert names(again) == {"old"}
    again.close()


def test_a_damaged_registry_without_a_copy_is_moved_away_and_begins_empty(registry: Registry, file: Path) -> None:
    registry.close()
    damage(file)
    for end in ("", "-wal", "-shm"):
        file.with_name(file.name + end).unlink(missing_ok=True)
    empty = Registry(f"sqlite:///{file}")
    empty.migrate()
    assert empty.knows_nothing()
    empty.close()


def _absent(copy: Path, url: str) -> None:
    pass


def _text(copy: Path, url: str) -> None:
    copy.write_text("no database")


def _other(copy: Path, url: str) -> None:
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("CREATE TABLE incidents (id)")


def _torn(copy: Path, url: str) -> None:
    back_up(url, copy)
    damage(copy)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (_absent, "There is no file"),
        (_text, "is damaged"),
        (_other, "is not a copy of a registry: it lacks alembic_version, applies, deployments"),
        (_torn, "is damaged"),
    ],
)
def test_a_file_that_is_no_whole_copy_changes_nothing(
    registry: Registry, url: str, tmp_path: Path, write: Callable[[Path, str], None], words: str
) -> None:
    copy = tmp_path / "copy.db"
    write(copy, url)
    with pytest.raises(CopyRefused, match=words):
        put_back(url, copy, NOW, in_use=True)
    assert names(registry) == {"old"}


def test_a_copy_of_a_newer_release_changes_nothing(registry: Registry, url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    back_up(url, copy)
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
        connection.commit()
    deploy(registry, "new")
    with pytest.raises(RegistryNewerThanCode):
        put_back(url, copy, NOW, in_use=True)
    assert names(registry) == {"old", "new"}


def test_a_copy_with_a_log_beside_it_has_the_transactions_of_the_log(
    registry: Registry, url: str, tmp_path: Path
) -> None:
    """Someone copied the files by hand; the newest transactions are still in the write-ahead log."""
    deploy(registry, "in-the-log")
    copy, file = tmp_path / "copy.db", tmp_path / "home" / "registry.db"
    for end in ("", "-wal"):
        copy.with_name(copy.name + end).write_bytes(file.with_name(file.name + end).read_bytes())
    assert copy.with_name("copy.db-wal").stat().st_size > 0
    put_back(url, copy, NOW, in_use=True)
    assert names(registry) == {"old", "in-the-log"}


def test_a_copy_never_replaces_a_file_and_needs_a_registry_in_a_file(
    registry: Registry, url: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_text("mine")
    with pytest.raises(CopyRefused, match="exists already"):
        back_up(url, copy)
    assert copy.read_text() == "mine"
    with pytest.raises(CopyRefused, match="There is no registry"):
        back_up(f"sqlite:///{tmp_path}/absent.db", tmp_path / "b.db")
    with pytest.raises(CopyRefused, match="not in a SQLite file") as refused:
        back_up("postgresql+psycopg://ann:secret@db/holdfast", tmp_path / "b.db")
    assert "secret" not in str(refused.value)
    assert "pg_dump" in (refused.value.action or "")


def test_a_registry_that_stays_locked_is_an_error_that_names_who_holds_it(
    registry: Registry, url: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.db"
    back_up(url, copy)
    deploy(registry, "new")
    monkeypatch.setattr(copies, "WAIT_S", 0.0)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RegistryUnavailable, match="stayed locked for 0 s") as seen:
            put_back(url, copy, NOW, in_use=True)
        assert "holds its lock" in (seen.value.action or "")
        other.execute("ROLLBACK")
    assert names(registry) == {"old", "new"}
    put_back(url, copy, NOW, in_use=True)
    assert names(registry) == {"old"}


def test_a_check_directly_before_the_change_refuses_it(registry: Registry, url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    back_up(url, copy)
    deploy(registry, "new")

    def check() -> None:
        raise CopyRefused("Apply 3 is under way.", action="Wait for its end.")

    with pytest.raises(CopyRefused, match="under way"):
        put_back(url, copy, NOW, in_use=True, check=check)
    assert names(registry) == {"old", "new"}


def test_a_registry_behind_a_link_is_replaced_where_it_is(
    registry: Registry, file: Path, url: str, tmp_path: Path
) -> None:
    copy, volume = tmp_path / "copy.db", tmp_path / "volume"
    back_up(url, copy)
    registry.close()
    damage(file)
    volume.mkdir()
    file.rename(volume / "kept.db")
    file.symlink_to(volume / "kept.db")
    aside = put_back(url, copy, NOW, in_use=False)
    assert aside == volume / "kept.db.damaged-20260301T030000"
    assert file.is_symlink()
    again = Registry(url)
    assert names(again) == {"old"}
    again.close()


def test_what_a_killed_command_left_is_deleted_by_the_next_one(registry: Registry, url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    left = [tmp_path / "copy.db.part-x1", tmp_path / "home" / "registry.db.part-x2", tmp_path / "copy.db.part-x1-wal"]
    for each in left:
        each.touch()
    back_up(url, copy)
    put_back(url, copy, NOW, in_use=True)
    assert [each for each in left if each.exists()] == []


def test_a_place_that_can_not_be_written_is_an_error_with_an_action(
    registry: Registry, url: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CopyRefused, match="can't be read or written") as refused:
        back_up(url, tmp_path / "file" / "copy.db")
    assert "Correct the path" in (refused.value.action or "")
    with pytest.raises(RegistryUnavailable, match="URL can't be used"):
        back_up("no url", tmp_path / "copy.db")
