"""Two code versions run in turn. In one of them, two streams share a new store. No message is lost or counted twice."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import Application
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.testing import InlineProcess, InMemoryCluster


def count(value: Any, state: Any) -> int:
    state.set("n", state.get("n", 0) + 1)
    return int(state.get("n"))


def build(*, joined: bool, **options: Any) -> Application:
    app = Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)
    placed = app.dataframe(app.topic("placed")).update(count, stateful=True, store="of-placed")
    if joined:
        placed.update(count, stateful=True, store="both")
        app.dataframe(app.topic("paid")).update(count, stateful=True, store="both")
    return app


def feed(cluster: InMemoryCluster, topic: str, times: int) -> None:
    for _ in range(times):
        cluster.produce(topic, b"1", b"k")


def test_tasks_that_are_joined_and_parted_keep_each_store_exact() -> None:
    cluster = InMemoryCluster()
    for topic in ("placed", "paid"):
        cluster.create_topic(topic)
    feed(cluster, "placed", 3)
    cluster.run(build(joined=False))
    cluster.create_topic("p-both-changelog", config={"cleanup.policy": "compact"})
    feed(cluster, "paid", 5)
    joined = build(joined=True)
    joined.with_run_overrides(slot=None, auto_create_topics=True, start=Start(begin_empty={"both": ""}))
    cluster.run(joined)
    assert cluster.state(build(joined=True), "of-placed") == {(b"k", "n"): 3}
    assert cluster.state(build(joined=True), "both") == {(b"k", "n"): 5}
    feed(cluster, "placed", 2)
    cluster.run(build(joined=False))
    assert cluster.state(build(joined=False), "of-placed") == {(b"k", "n"): 5}
    # Run the joined version again, with an empty new store `both`. The store `of-placed` can continue without offsets
    # of the topic `paid`, because it does not read this topic.
    cluster.delete_topic("p-both-changelog")
    cluster.create_topic("p-both-changelog", config={"cleanup.policy": "compact"})
    feed(cluster, "placed", 1)
    feed(cluster, "paid", 1)
    again = build(joined=True)
    again.with_run_overrides(slot=None, auto_create_topics=True, start=Start(begin_empty={"both": ""}))
    cluster.run(again)
    assert cluster.state(build(joined=True), "of-placed") == {(b"k", "n"): 6}
    assert cluster.state(build(joined=True), "both") == {(b"k", "n"): 2}


def test_a_new_store_begins_empty_also_where_its_first_commit_was_aborted() -> None:
    """A new store starts empty although the worker's first commit was aborted.

    After the abort, the changelog's end offset is above 0, but it contains no committed record.
    """
    cluster = InMemoryCluster()
    for topic in ("placed", "paid"):
        cluster.create_topic(topic)
    feed(cluster, "placed", 3)
    cluster.run(build(joined=False))
    cluster.create_topic("p-both-changelog", config={"cleanup.policy": "compact"})
    cluster.open_foreign_transaction("p-both-changelog", 0, [(key_prefix(b"k") + b"n", encode_value(9, 0))]).abort()
    feed(cluster, "paid", 5)
    joined = build(joined=True)
    joined.with_run_overrides(slot=None, auto_create_topics=True, start=Start(begin_empty={"both": ""}))
    cluster.run(joined)
    assert cluster.state(build(joined=True), "both") == {(b"k", "n"): 5}


def test_a_changelog_that_is_created_again_later_does_not_begin_empty(tmp_path: Path) -> None:
    """A worker may start a store empty only if its changelog has the recorded topic id.

    A restarted worker gets the same arguments, also the permission to start the store empty. So if the changelog was
    deleted and created again, the worker must refuse to start.
    """
    cluster = InMemoryCluster()
    cluster.create_topic("placed")
    cluster.create_topic("paid")
    cluster.create_topic("p-both-changelog", config={"cleanup.policy": "compact"})
    topics = cluster.connect(InlineProcess(cluster.clock)).topics()
    first = topics.describe(["p-both-changelog"])["p-both-changelog"].topic_id

    def run() -> None:
        app = build(joined=True, state_dir=tmp_path)
        app.with_run_overrides(slot="0", auto_create_topics=True, start=Start(begin_empty={"both": first}))
        cluster.run(app)

    feed(cluster, "paid", 5)
    run()
    cluster.delete_topic("p-both-changelog")
    cluster.create_topic("p-both-changelog", config={"cleanup.policy": "compact"})
    feed(cluster, "paid", 1)
    with pytest.raises(StateIncoherent, match="was recreated"):
        run()
