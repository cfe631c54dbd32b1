"""The whole verb ``erase`` on a processor whose store has a table: a snapshot is published, then the table rewritten."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from holdfast.infra.spark import session
from holdfast.infra.warehouse.catalog import read_table
from holdfast.orchestration.erasing import _publish, files_with_key
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.plans.certificates import decode
from holdfast.processors.lifecycle.plans.requests import Erase
from holdfast.processors.snapshots.names import history_name, table_name
from tests.parts.operated import Operated

KEY = "key-3"


@pytest.mark.thorough
def test_an_erasure_publishes_a_snapshot_and_leaves_no_file_with_the_key(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "stop_spark", lambda spark: None)
    spark: Any = session.spark_session(operated.settings, app_name="a test")
    operated.bring_up()
    operated.feed(keys=6, each=5)
    operated.processed(30)
    operated.client.checkpoint()
    place = (operated.group, "counts")
    _publish(operated.settings, operated.verbs.registry, operated.topics, spark, place)
    tables = (table_name(*place), history_name(*place))
    with_key = partial(files_with_key, operated.settings, KeyEntries(KEY), {0: 10**9, 1: 10**9})
    assert all(map(with_key, tables))

    operated.do(Erase(operated.group, KEY))
    certificate = decode(operated.verbs.registry.erasures.of(operated.group)[-1].document)
    assert certificate.proven, certificate
    (proof,) = [each for each in certificate.proofs if each.kind == "table"]
    assert proof.outcome == "gone", proof
    assert not any(map(with_key, tables))
    keys = read_table(operated.settings, operated.group, "counts").column("message_key").to_pylist()
    assert sorted(keys) == [f"key-{number}" for number in range(6) if number != 3]
