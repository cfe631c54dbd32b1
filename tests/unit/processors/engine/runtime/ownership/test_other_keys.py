"""A code version of a processor stores its state under other keys than the version before.

A worker that is started by hand refuses this state. Each action that the error names works.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, Count, InlineProcess, InMemoryCluster, load_settings, same_as
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT, Manifest
from holdfast.processors.engine.state.databases.task_meta import StoreOffset, TaskMeta
from holdfast.processors.engine.state.errors import StateIncoherent

FLIGHTS = [{"carrier": carrier, "plane": f"N{number % 3}"} for number, carrier in enumerate("LBLALBLL")]


def by_carrier(flight: Any) -> Any:
    return flight["carrier"]


def counting(key: Any, state_dir: Path, name: str = "k", **options: Any) -> Application:
    options = {"auto_offset_reset": "earliest", "loglevel": None, "state_dir": state_dir, **options}
    app = Application("in-memory", consumer_group="p", **options)
    app.dataframe(app.topic("flights")).group_by(key, name=name).aggregate(n=Count()).to_topic(app.topic("out"))
    return app


def world() -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("flights", partitions=2)
    feed(cluster)
    return cluster


def feed(cluster: InMemoryCluster) -> None:
    for number, flight in enumerate(FLIGHTS):
        cluster.produce("flights", json.dumps(flight).encode(), b"%d" % number, timestamp_ms=number)


def newest(cluster: InMemoryCluster) -> dict[str, int]:
    read = [record for _, record in cluster.read("out")]
    return {(record.key or b"").decode(): json.loads(record.value or b"null")["n"] for record in read}


def counts(field: str, times: int) -> dict[str, int]:
    return {each[field]: times * sum(one[field] == each[field] for one in FLIGHTS) for each in FLIGHTS}


@pytest.mark.parametrize("lost", [False, True], ids=["local", "restored"])
@pytest.mark.parametrize(
    ("former", "now", "told"),
    [
        ("carrier", "plane", "group_by k: key was field carrier, now field plane"),
        (by_carrier, lambda flight: flight["plane"], "group_by k: key was function "),
    ],
    ids=["field", "function"],
)
def test_another_key_is_refused_until_all_state_is_built_again(
    former: Any, now: Any, told: str, lost: bool, tmp_path: Path
) -> None:
    cluster = world()
    cluster.run(counting(former, tmp_path))
    assert newest(cluster) == counts("carrier", 1)
    if lost:
        shutil.rmtree(tmp_path / "p")
    feed(cluster)
    with pytest.raises(StateIncoherent) as refused:
        cluster.run(counting(now, tmp_path))
    assert told in str(refused.value)
    assert '`app.clear_state(rewind="earliest")`' in refused.value.action
    assert newest(cluster) == counts("carrier", 1)
    cluster.run(counting(former, tmp_path))  # the refused start changed nothing, so the former version still runs
    assert newest(cluster) == counts("carrier", 2)
    connected = cluster.connect(InlineProcess(cluster.clock))
    counting(now, tmp_path).clear_state_on(connected, load_settings(home=tmp_path), rewind="earliest")
    cluster.run(counting(now, tmp_path))
    assert {key: n for key, n in newest(cluster).items() if key.startswith("N")} == counts("plane", 2)


def test_another_name_of_the_step_begins_a_store_of_its_own(tmp_path: Path) -> None:
    cluster = world()
    cluster.run(counting("carrier", tmp_path))
    feed(cluster)
    cluster.run(counting("plane", tmp_path, "by-plane"))
    assert newest(cluster) == counts("carrier", 1) | counts("plane", 1)


def test_a_function_that_gives_the_same_keys_goes_on_once_it_says_so(tmp_path: Path) -> None:
    cluster = world()
    cluster.run(counting(by_carrier, tmp_path))
    feed(cluster)

    def carrier_of(flight: Any) -> Any:
        return flight.get("carrier")

    with pytest.raises(StateIncoherent, match="function") as refused:
        cluster.run(counting(carrier_of, tmp_path))
    former = refused.value.action.partition('same_as("')[2][:8]
    cluster.run(counting(same_as(former)(carrier_of), tmp_path))
    assert newest(cluster) == counts("carrier", 2)
    cluster.run(counting(by_carrier, tmp_path))  # the worker also starts again with the former function


def test_a_store_without_a_changelog_has_its_keys_beside_its_data(tmp_path: Path) -> None:
    plain = {"use_changelog_topics": False, "processing_guarantee": "at-least-once"}
    cluster = world()
    cluster.run(counting("carrier", tmp_path, **plain))
    with pytest.raises(StateIncoherent, match="key was field carrier"):
        cluster.run(counting("plane", tmp_path, **plain))


def test_a_checkpoint_has_the_keys_of_its_state() -> None:
    meta = TaskMeta({"in": 7}, {"s": StoreOffset("p-s-changelog", "id", 9, {"in": 7})}, keys={"s": ("a b: by = c",)})
    made = Manifest("c1", "p", "in-0", 0, "v1", "db", STATE_FORMAT, 12.5, meta, ())
    assert Manifest.decode(made.encode()) == made


def test_state_of_a_version_that_did_not_record_its_keys_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = world()
    with monkeypatch.context() as former:
        former.setattr("holdfast.processors.engine.runtime.commit.keys_of", lambda topology: {})
        cluster.run(counting("carrier", tmp_path))
    assert [each for each in metas(cluster) if "keys" in each] == []
    feed(cluster)
    cluster.run(counting("carrier", tmp_path))
    assert newest(cluster) == counts("carrier", 2)
    told = [each["keys"] for each in metas(cluster) if "keys" in each]
    assert told
    assert all(each == ["group_by k: key = field carrier", "group_by k: key_serializer = text"] for each in told)


def metas(cluster: InMemoryCluster) -> list[dict[str, Any]]:
    read = cluster.read("p-flights-by-k-aggregate-changelog")
    return [json.loads(record.value or b"") for _, record in read if record.key == META_KEY]


def test_drop_duplicates_by_another_field_is_refused(tmp_path: Path) -> None:
    def first(by: str) -> Application:
        app = Application(
            "in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, state_dir=tmp_path
        )
        app.dataframe(app.topic("flights")).drop_duplicates(by, within=1_000, store="seen").to_topic(app.topic("out"))
        return app

    cluster = world()
    cluster.run(first("carrier"))
    with pytest.raises(StateIncoherent, match="drop_duplicates seen: by was field carrier, now field plane"):
        cluster.run(first("plane"))
