"""Checks that the state on a stopped process's disk equals its changelogs, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.audits.copies import ChangelogCopy
from holdfast.processors.engine.state.databases.rocksdb import StateReader
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of
from tests.bench.contenders import Work
from tests.bench.measured import RunWrong
from tests.bench.ours import application_of

SETTLE_S = 600.0


def check_state(work: Work, keys: int, slot: str = "*") -> None:
    """Compare the state folders of a group (or of one slot, a worker's place) with the changelogs.

    Raises:
        RunWrong: State and changelogs differ, or the state does not have the expected number of keys.
    """
    topology = application_of(work).topology()

    def rows() -> Iterator[tuple[bytes, bytes]]:
        for path in sorted(Path(work.state_dir).glob(f"*/{slot}/*")):
            if (path / "CURRENT").exists():
                reader = StateReader(path)
                yield from reader.items(topology.stores[0].name)
                reader.close()

    topic, held, expected = topology.changelogs[0].topic.name, fingerprint_of(rows()), Fingerprint()
    topics = Topics(work.bootstrap)
    for number, end in topics.settled_end_offsets(topic, SETTLE_S).items():
        expected += ChangelogCopy(topics, Partition(topic, number), end, {}).prints().whole
    if held != expected or held.count != keys:
        raise RunWrong(f"the state of {work.group} is {held.hex}, its changelog is {expected.hex}")
