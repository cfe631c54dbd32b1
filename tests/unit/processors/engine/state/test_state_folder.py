"""The ids of state folders, their names, and the check whether a process uses them."""

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import Application
from holdfast.infra.system.process import own_identity, write_identity
from holdfast.processors.engine.changelog.names import file_name
from holdfast.processors.engine.checkpoints.manifest import Place
from holdfast.processors.engine.state.folder import HOLDER, StateFolder
from holdfast.processors.testing import InMemoryCluster


def folder_id(state_dir: Path) -> str:
    folder = StateFolder(state_dir, "p", "0")
    folder.release()
    return folder.id


def test_two_folders_on_hosts_of_one_name_have_ids_of_their_own_and_keep_them(tmp_path: Path) -> None:
    first, second = folder_id(tmp_path / "a"), folder_id(tmp_path / "b")
    assert first != second
    assert (folder_id(tmp_path / "a"), folder_id(tmp_path / "b")) == (first, second)


def test_a_folder_of_a_former_version_keeps_the_transactional_id_of_its_host(tmp_path: Path) -> None:
    path = tmp_path / "p" / "0"
    path.mkdir(parents=True)
    (path / "identity.json").write_text(json.dumps({"version": 1, "application": "p"}))
    assert folder_id(tmp_path) == socket.gethostname()
    # An older version of Holdfast reads only the identity file, and accepts it.
    assert json.loads((path / "identity.json").read_text()) == {"version": 1, "application": "p"}


def test_a_slot_is_in_use_as_long_as_its_process_runs(tmp_path: Path) -> None:
    slot = tmp_path / "p" / "0"
    assert not StateFolder.in_use(slot)
    program = "from holdfast.processors.engine.state.folder import StateFolder\nfrom pathlib import Path\n"
    program += f"StateFolder(Path({str(tmp_path)!r}), 'p', '0'); print(flush=True); input()"
    worker = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1)
    worker.stdout.readline()
    try:
        assert StateFolder.in_use(slot)
    finally:
        worker.communicate(b"\n")
    assert not StateFolder.in_use(slot)


def test_another_process_with_the_id_of_an_ended_holder_does_not_use_its_slot(tmp_path: Path) -> None:
    slot, ours = tmp_path / "p" / "0", own_identity()
    folder_id(tmp_path)
    assert StateFolder.in_use(slot)  # this process holds the folder and is running
    write_identity(slot / HOLDER, replace(ours, mark="1"))
    assert not StateFolder.in_use(slot)
    # An older version of Holdfast recorded no identity of the holder. Then any process with the recorded process id
    # counts as holder.
    (slot / HOLDER).unlink()
    assert StateFolder.in_use(slot)


@pytest.mark.parametrize("part", ["boot", "namespace"])
def test_a_holder_that_cannot_be_seen_uses_its_slot_while_it_holds_the_lock(tmp_path: Path, part: str) -> None:
    slot = tmp_path / "p" / "0"
    folder = StateFolder(tmp_path, "p", "0")
    write_identity(slot / HOLDER, replace(own_identity(), **{part: "another"}))
    assert StateFolder.in_use(slot)
    folder.release()
    assert not StateFolder.in_use(slot)


TOPICS = [f"{name}.{'x' * 120}" for name in "abc"]


def test_a_store_that_many_topics_feed_has_a_folder_of_a_bounded_name(tmp_path: Path) -> None:
    cluster = InMemoryCluster()
    app = Application("in-memory", consumer_group="p", auto_offset_reset="earliest", state_dir=tmp_path, loglevel=None)
    for topic in TOPICS:
        cluster.create_topic(topic)
        cluster.produce(topic, b"1", b"k")
        app.dataframe(app.topic(topic)).update(
            lambda value, state: state.set("n", state.get("n", 0) + 1), stateful=True, store="shared"
        )
    cluster.run(app)
    assert cluster.state(app, "shared") == {(b"k", "n"): 3}
    [task] = app.topology().tasks(dict.fromkeys(TOPICS, 1))
    assert len(task) > 255
    folder = StateFolder.path_of(tmp_path, "p", "0", task)
    assert folder.is_dir()
    assert len(folder.name) <= 160
    assert max(map(len, Place("p", task).folder.split("/"))) <= 255


@pytest.mark.parametrize(("length", "kept"), [(150, True), (161, True), (250, True), (256, False)])
def test_the_folder_of_a_former_version_is_found(tmp_path: Path, length: int, kept: bool) -> None:
    task = "t" * (length - 2) + "-0"
    if length <= 255:
        (tmp_path / "p" / "0" / task).mkdir(parents=True)
    assert (StateFolder.path_of(tmp_path, "p", "0", task).name == task) is kept


def test_cut_names_differ_where_names_differ() -> None:
    names = ["x" * 300 + f"{number}-{partition}" for number in range(3) for partition in range(3)]
    assert len({file_name(name, 160) for name in names}) == 9
    assert {len(file_name(name, 160)) for name in names} <= set(range(161))
