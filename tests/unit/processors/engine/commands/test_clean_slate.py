"""``clear_state`` empties every store: on disk, in the changelog and in the checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InlineProcess, InMemoryCluster, Partition, load_settings
from holdfast.infra.settings import CheckpointSettings, Settings
from holdfast.processors.engine.commands import sweep
from holdfast.processors.engine.runtime.owner_commands.commands import CommandFailed, CommandRefused
from holdfast.processors.engine.state.errors import StateFolderTaken
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.testing.groups import SESSION_TIMEOUT_S
from tests.mechanics.tiers import variants

PARTITIONS = 3


def count(value: int, state: Any) -> int:
    state.set("n", state.get("n", 0) + 1)
    return int(state.get("n"))


def build(**options: Any) -> Application:
    """An application with two stateful streams and one stream without state."""
    options = {"auto_offset_reset": "earliest", "loglevel": None, **options}
    app = Application(consumer_group="counting", **options)
    app.dataframe(app.topic("in")).apply(count, stateful=True, store="counts").to_topic(app.topic("out"))
    app.dataframe(app.topic("others")).apply(count, stateful=True, store="elsewhere")
    app.dataframe(app.topic("plain")).to_topic(app.topic("copies"))
    return app


def feed(cluster: InMemoryCluster, messages: int = 40) -> None:
    for number in range(messages):
        for topic in ("in", "others", "plain"):
            cluster.produce(topic, json.dumps(number).encode(), b"k%d" % (number % 8))


@pytest.fixture(params=variants(["cooperative-sticky", "range", "roundrobin"]))
def cluster(request: pytest.FixtureRequest) -> InMemoryCluster:
    made = InMemoryCluster()
    made.assignor = request.param
    for topic in ("in", "others", "plain"):
        made.create_topic(topic, partitions=PARTITIONS)
    return made


def states(cluster: InMemoryCluster) -> dict[str, dict[tuple[bytes, str], Any]]:
    return {store: cluster.state(build(), store) for store in ("counts", "elsewhere")}


def databases(state_dir: Path) -> list[Path]:
    return [path for path in (state_dir / "counting").glob("*/*") if path.is_dir()]


def test_the_state_is_gone_and_the_offsets_stay(cluster: InMemoryCluster, tmp_path: Path) -> None:
    feed(cluster)
    cluster.run(build(state_dir=tmp_path))
    offsets = cluster.committed_offsets("counting")
    assert all(states(cluster).values())
    cluster.clear_state(build(state_dir=tmp_path))
    assert states(cluster) == {"counts": {}, "elsewhere": {}}
    assert databases(tmp_path) == []
    assert cluster.committed_offsets("counting") == offsets
    feed(cluster, 8)
    for disk in (tmp_path, tmp_path / "another"):
        cluster.run(build(state_dir=disk))
    assert set(states(cluster)["counts"].values()) == {1}
    assert len(cluster.read("copies")) == 48


def test_copies_of_other_slots_are_deleted(cluster: InMemoryCluster, tmp_path: Path) -> None:
    feed(cluster)
    for slot in ("0", "1"):
        cluster.run(build(state_dir=tmp_path, slot=slot))
    assert len(databases(tmp_path)) == 4 * PARTITIONS
    cluster.clear_state(build(state_dir=tmp_path))
    assert databases(tmp_path) == []


def test_a_rewind_reads_the_input_again(cluster: InMemoryCluster) -> None:
    feed(cluster)
    cluster.run(build())
    before = states(cluster)
    cluster.clear_state(build(), rewind="earliest")
    assert set(cluster.committed_offsets("counting").values()) == {0}
    cluster.run(build())
    assert states(cluster) == before
    assert len(cluster.read("copies")) == 80


def test_nothing_to_clear_changes_nothing(cluster: InMemoryCluster, tmp_path: Path) -> None:
    cluster.clear_state(build(state_dir=tmp_path))
    assert cluster.committed_offsets("counting") == {}
    feed(cluster)
    cluster.run(build(state_dir=tmp_path))
    assert set(states(cluster)["counts"].values()) == {5}


def test_a_lost_changelog_stops_no_clean_slate(cluster: InMemoryCluster, tmp_path: Path) -> None:
    feed(cluster)
    cluster.run(build(state_dir=tmp_path))
    cluster.delete_topic("counting-counts-changelog")
    cluster.clear_state(build(state_dir=tmp_path))
    feed(cluster, 8)
    cluster.run(build(state_dir=tmp_path))
    assert set(states(cluster)["counts"].values()) == {1}


def test_state_without_changelogs_is_deleted(cluster: InMemoryCluster, tmp_path: Path) -> None:
    app = {"state_dir": tmp_path, "use_changelog_topics": False}
    feed(cluster)
    cluster.run(build(**app))
    cluster.clear_state(build(**app), rewind="earliest")
    assert databases(tmp_path) == []
    cluster.run(build(**app))
    made = [json.loads(record.value) for _, record in cluster.read("out")]
    assert made[:40].count(1) + made[40:].count(1) == 16
    assert max(made) == 5


class Running(InlineProcess):
    """A worker that tries to clear the state of its own application after it has processed messages."""

    def __init__(self, cluster: InMemoryCluster, app: Application, settings: Settings) -> None:
        super().__init__(cluster.clock)
        self.cluster, self.app, self.settings = cluster, app, settings
        self.refused: CommandRefused | None = None

    def point(self, name: str) -> None:
        if self.app._worker is not None and self.app._worker.processed and self.refused is None:
            with pytest.raises(CommandRefused) as refused:
                build(state_dir=self.settings.paths.state / "elsewhere").clear_state_on(
                    self.cluster.connect(InlineProcess(self.clock)), self.settings
                )
            self.refused = refused.value

    @property
    def clock(self) -> Any:
        return self._clock


def test_it_is_refused_while_a_member_lives(cluster: InMemoryCluster, tmp_path: Path) -> None:
    feed(cluster)
    app, settings = build(state_dir=tmp_path), load_settings(home=tmp_path)
    process = Running(cluster, app, settings)
    app.run_on(cluster.connect(process), settings, timeout=3.0)
    assert process.refused is not None
    assert "1 live member," in process.refused.message
    assert process.refused.action is not None
    assert set(states(cluster)["counts"].values()) == {5}


class Joined(InlineProcess):
    """A process that clears state. After its n-th commit, another member joins the group."""

    def __init__(self, cluster: InMemoryCluster, commits: int) -> None:
        super().__init__(cluster.clock)
        self.cluster, self.left = cluster, commits
        self.rival = InlineProcess(cluster.clock, "rival")

    def point(self, name: str) -> None:
        self.left -= name == "commit:after"
        if self.left == 0 and name == "commit:after":
            self.cluster._broker.group("counting").join(self.rival, ("in", "others", "plain"), "rival")


@pytest.mark.parametrize("commits", [1, 4, 7])
def test_a_member_that_joins_in_the_middle_stops_it(
    cluster: InMemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    monkeypatch.setattr(sweep, "ENTRIES_MAX", 2)
    feed(cluster)
    cluster.run(build(state_dir=tmp_path))
    process = Joined(cluster, commits)
    with pytest.raises(CommandRefused, match="1 live member,"):
        build(state_dir=tmp_path).clear_state_on(cluster.connect(process), load_settings(home=tmp_path))
    assert databases(tmp_path)
    process.frozen = process.rival.frozen = True
    cluster.clear_state(build(state_dir=tmp_path))
    assert states(cluster) == {"counts": {}, "elsewhere": {}}
    assert databases(tmp_path) == []


@pytest.mark.parametrize("options", [{"state_backend": "memory"}, {"processing_guarantee": "at-least-once"}])
def test_other_backends_and_guarantees_are_cleared_too(cluster: InMemoryCluster, options: dict[str, Any]) -> None:
    feed(cluster)
    cluster.run(build(**options))
    offsets = cluster.committed_offsets("counting")
    cluster.clear_state(build(**options))
    assert states(cluster) == {"counts": {}, "elsewhere": {}}
    assert cluster.committed_offsets("counting") == offsets


def test_it_is_refused_while_a_slot_is_held(cluster: InMemoryCluster, tmp_path: Path) -> None:
    feed(cluster)
    cluster.run(build(state_dir=tmp_path, slot="0"))
    folder = StateFolder(tmp_path, "counting", "0")
    with pytest.raises(StateFolderTaken):
        cluster.clear_state(build(state_dir=tmp_path))
    folder.release()
    assert databases(tmp_path)


class Killed(BaseException):
    """Raised in place of a kill: the process ends."""


class Doomed(InlineProcess):
    """A process that is killed at its n-th commit, before or after the commit takes effect.

    Later calls have no effect.
    """

    def __init__(self, cluster: InMemoryCluster, commits: int, at: str) -> None:
        super().__init__(cluster.clock)
        self.left, self.at = commits, at

    def point(self, name: str) -> None:
        self.left -= name == self.at
        if self.left <= 0:
            self.frozen = True
            raise Killed


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "ENTRIES_MAX", 2)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("at", ["commit:before", "commit:after"])
@pytest.mark.parametrize("rewind", ["stay", "earliest"])
def test_killed_in_the_middle_and_repeated_it_ends_empty(
    cluster: InMemoryCluster, tmp_path: Path, at: str, rewind: Any
) -> None:
    feed(cluster)
    cluster.run(build(state_dir=tmp_path))
    offsets = cluster.committed_offsets("counting")
    settings = load_settings(home=tmp_path)
    for commits in (2, 3, 1):
        with pytest.raises(Killed):
            build(state_dir=tmp_path).clear_state_on(
                cluster.connect(Doomed(cluster, commits, at)), settings, rewind=rewind
            )
        cluster.clock.advance_to(cluster.clock.monotonic() + SESSION_TIMEOUT_S + 2.0)
    assert any(states(cluster).values())
    cluster.clear_state(build(state_dir=tmp_path), rewind=rewind)
    assert states(cluster) == {"counts": {}, "elsewhere": {}}
    assert databases(tmp_path) == []
    assert cluster.committed_offsets("counting") == (offsets if rewind == "stay" else dict.fromkeys(offsets, 0))


def test_a_worker_that_is_stopped_too_early_is_told(
    cluster: InMemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(cluster)
    cluster.run(build(state_dir=tmp_path))
    monkeypatch.setattr(Application, "run_on", lambda *_: None)  # the run returns at once, as after a signal
    with pytest.raises(CommandFailed, match="stopped before it was done"):
        cluster.clear_state(build(state_dir=tmp_path))
    assert databases(tmp_path)


def test_checkpoints_are_deleted_and_those_of_other_groups_stay(cluster: InMemoryCluster, tmp_path: Path) -> None:
    feed(cluster)
    kept = CheckpointSettings(url=str(tmp_path / "checkpoints"))
    settings = load_settings(home=tmp_path, checkpoints=kept)
    build().run_on(cluster.connect(InlineProcess(cluster.clock)), settings, timeout=3.0)
    store = Path(settings.checkpoint_store)
    assert list(store.rglob("manifests/*.json"))
    other = store / "counting-2" / "task" / "manifests" / "1-x.json"
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    build().clear_state_on(cluster.connect(InlineProcess(cluster.clock)), settings)
    assert [path for path in store.rglob("*") if path.is_file()] == [other]
    assert states(cluster) == {"counts": {}, "elsewhere": {}}


def test_a_word_that_is_no_rewind_is_refused(cluster: InMemoryCluster) -> None:
    with pytest.raises(Exception, match="rewind"):
        cluster.clear_state(build(), rewind="latest")  # type: ignore[arg-type]


def test_the_position_of_an_application_without_state_is_moved(cluster: InMemoryCluster) -> None:
    app = Application(consumer_group="plain", auto_offset_reset="earliest", loglevel=None)
    app.dataframe(app.topic("plain")).to_topic(app.topic("copies"))
    feed(cluster)
    cluster.run(app)
    cluster.clear_state(app, rewind="earliest")
    assert cluster.committed_offsets("plain") == {Partition("plain", number): 0 for number in range(PARTITIONS)}
