"""Every reader of a changelog stops at a foreign record (written by another program), and names its offset.

The reader changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.changelog.format import (
    META_KEY,
    ChangelogMeta,
    FormatUnknown,
    encode_json,
    encode_value,
    key_prefix,
)
from holdfast.processors.engine.commands.content import Replay
from holdfast.processors.engine.runtime.owner_commands.commands import CommandFailed
from holdfast.processors.engine.runtime.ownership.changelog_replay import Restorer
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.rocksdb_options import RocksMemory
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.keep_or_restore import RestorePlan
from holdfast.processors.testing import InlineProcess, InMemoryCluster

SMALL = RocksMemory(8 << 20, 8 << 20)
PLACE = Partition("changelog", 0)
KEY, VALUE = key_prefix(b"k") + b"n", encode_value(1, 0)
DEEP = b"[" * 100_000 + b"]" * 100_000
META = {"inputs": {"orders": 1}, "transaction": 1, "code_version": "v1", "version": 1}

FOREIGN = {
    "no key format": (b"from a tool", VALUE),
    "empty key": (b"", VALUE),
    "short key": (b"\x01", VALUE),
    "key shorter than it says": (b"\x01\xff\xff\xff\xffk", VALUE),
    "empty value": (KEY, b""),
    "short value": (KEY, b"\x01\x01"),
    "unknown codec": (KEY, b"\x01\x07" + bytes(8)),
    "JSON": (b'{"id":1}', b'{"name":"x"}'),
    "meta is a list": (META_KEY, b"[]"),
    "meta is null": (META_KEY, b"null"),
    "meta is no JSON": (META_KEY, b"\xff"),
    "meta is empty": (META_KEY, b""),
    "meta without inputs": (META_KEY, b'{"version":1}'),
    "meta with other types": (META_KEY, encode_json({**META, "inputs": [1]})),
    "meta of a later version": (META_KEY, encode_json({**META, "version": 2})),
    "meta nested deeply": (META_KEY, DEEP),
    "meta with a deep field": (META_KEY, b'{"x":' + DEEP + b',"version":1}'),
}


@pytest.fixture(params=FOREIGN)
def cluster(request: pytest.FixtureRequest) -> InMemoryCluster:
    """A changelog with four records. Another program wrote the record at offset 2."""
    made = InMemoryCluster()
    made.create_topic(PLACE.topic)
    for key, value in ((KEY, VALUE), (META_KEY, ChangelogMeta({}, 1, "v1").encode()), FOREIGN[request.param]):
        made.produce(PLACE.topic, value, key)
    made.produce(PLACE.topic, VALUE, KEY)
    return made


def names_the_place(failure: HoldfastError) -> None:
    assert "changelog[0]" in failure.message
    assert "offset 2 " in failure.message
    assert failure.action


def test_a_restore_names_it(cluster: InMemoryCluster, tmp_path: Path) -> None:
    view = cluster.connect(InlineProcess(cluster.clock))
    restorer, task = Restorer(view, 100), Task("orders-0", "orders", 0, ("orders",))
    task.open(TaskStore(RocksDatabases(SMALL), tmp_path / "task"), ("counts",))
    known = view.topics().describe([PLACE.topic])[PLACE.topic]
    facts = ChangelogFacts(PLACE.topic, known.topic_id, 0, cluster.log_end(PLACE), 86_400.0)
    restorer.begin(task, RestorePlan({"counts": 0}), {"counts": facts}, {"orders": None}, cluster.clock.time())
    with pytest.raises(FormatUnknown) as refused:
        restorer.step(0.0)
    names_the_place(refused.value)
    assert (refused.value.fields["offset"], refused.value.exit_code) == (2, 64)
    assert task.store is not None
    assert not task.store.holds_data("counts"), "the batch of the record is not written"
    restorer.close()
    task.close()


def test_adopting_the_changelog_fails_and_names_it(cluster: InMemoryCluster, tmp_path: Path) -> None:
    view = cluster.connect(InlineProcess(cluster.clock))
    into = TaskStore(RocksDatabases(SMALL), tmp_path / "scratch")
    replay = Replay(view, PLACE, (0, cluster.log_end(PLACE)), into, "counts")
    with pytest.raises(CommandFailed) as refused:
        replay.step()
    names_the_place(refused.value)
    replay.close()
    into.close()
