"""Transaction markers and aborted records at the end of an input do not count as records.

The group's committed offset moves past them. So if Kafka later deletes the whole log, no record counts as lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ownership.past_markers import REST_S
from holdfast.processors.engine.state.errors import StateIncoherent

IN = Partition("in", 0)


def application(state_dir: Path, *, stateful: bool) -> Application:
    app = Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, state_dir=state_dir)
    stream = app.dataframe(app.topic("in", value_deserializer="bytes"))
    if stateful:

        def counted(value: bytes, state: Any) -> bytes:
            state.set("n", state.get("n", 0) + 1)
            return b"%d" % state.get("n")

        stream = stream.apply(counted, stateful=True, store="counts")
    stream.to_topic(app.topic("out", value_serializer="bytes"))
    return app


def filled(*ends: bool) -> InMemoryCluster:
    """A topic with one message in each transaction. The transactions are committed or aborted."""
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for commit in ends:
        written = cluster.open_foreign_transaction("in", 0, [(b"k", b"v")])
        written.commit() if commit else written.abort()
        cluster.advance(1.0)  # wait until the transaction marker is written
    return cluster


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("ends", [(True,), (True, False), (True, False, False)])
def test_a_log_that_is_emptied_behind_its_last_marker_lost_nothing(
    tmp_path: Path, ends: tuple[bool, ...], stateful: bool
) -> None:
    cluster = filled(*ends)
    cluster.run(application(tmp_path, stateful=stateful), quiet_s=2 * REST_S)
    assert cluster.committed_offsets("p")[IN] == cluster.log_end(IN)
    cluster.truncate(IN, start=cluster.log_end(IN))
    cluster.run(application(tmp_path, stateful=stateful))
    cluster.run(application(tmp_path / "lost", stateful=stateful))
    cluster.produce("in", b"v", b"k")
    cluster.run(application(tmp_path, stateful=stateful))
    assert [record.value for _, record in cluster.read("out")] == ([b"1", b"2"] if stateful else [b"v", b"v"])


def test_what_is_open_or_not_read_is_still_claimed(tmp_path: Path) -> None:
    cluster = filled(True)
    still_open = cluster.open_foreign_transaction("in", 0, [(b"k", b"later")])
    cluster.run(application(tmp_path, stateful=True), quiet_s=2 * REST_S)
    assert cluster.committed_offsets("p")[IN] == 2  # after the marker, before the open transaction's record
    still_open.commit()
    cluster.truncate(IN, start=4)
    with pytest.raises(StateIncoherent, match="2 records are gone"):
        cluster.run(application(tmp_path, stateful=True))


def test_a_task_that_rests_makes_one_commit_for_its_markers(tmp_path: Path) -> None:
    cluster = filled(True)
    cluster.run(application(tmp_path, stateful=True), quiet_s=10 * REST_S)
    committed = cluster.log_end(Partition("p-counts-changelog", 0))
    cluster.run(application(tmp_path, stateful=True), quiet_s=10 * REST_S)
    assert cluster.log_end(Partition("p-counts-changelog", 0)) == committed
