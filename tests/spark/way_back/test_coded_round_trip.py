"""A store whose values are not JSON is restored after a wipe: from an exported file, and from a snapshot by Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.settings import Settings
from holdfast.processors.lifecycle.plans.requests import Clear, Deploy, Keys, Restore
from holdfast.processors.snapshots.manifest import CHECKPOINT, INCREMENTAL
from tests.parts import operated as parts
from tests.parts.operated import Operated
from tests.spark.way_back.test_round_trip import snapshot, wipe

KEYS = 8
_COUNT = """
from decimal import Decimal

counts = application.store("counts", codec="typed")


def count(value, state):
    seen, total = state.get("n", (set(), Decimal(0)))
    state.set("n", (seen | {{len(seen)}}, total + Decimal("0.10")))
    return len(seen) + 1
"""
_HEAD, _, _REST = parts.DEFINITION.partition("def count(")
CODED = _HEAD + _COUNT + "\n\nframe = " + _REST.partition("frame = ")[2].replace('store="counts"', "store=counts")


@pytest.fixture
def coded(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Operated:
    monkeypatch.setattr(parts, "DEFINITION", CODED)
    made: Operated = request.getfixturevalue("operated")
    return made


def counted(times: int) -> dict[str, Any]:
    total = Decimal("0.10") * times
    return {f"key-{number}": (set(range(times)), total) for number in range(KEYS)}


def test_a_typed_store_comes_back_from_a_file_and_from_a_snapshot(
    coded: Operated, session_for: Callable[[Settings], Any]
) -> None:
    session = session_for(coded.settings)
    coded.bring_up()
    coded.feed(KEYS, 3)
    coded.processed(KEYS * 3)
    assert coded.logged() == counted(3)
    full = snapshot(session, coded)

    coded.do(Clear(coded.group, ("counts",), Keys(("key-1", "key-2"))))
    [file] = (Path(coded.settings.paths.home) / "exports").rglob("*.jsonl")
    first = json.loads(file.read_text().splitlines()[0])
    assert (first["value"], first["codec"]) == ([[0, 1, 2], "0.30"], "typed 1")
    coded.do(Restore(coded.group, file=str(file)))
    assert coded.logged() == counted(3)
    merged = snapshot(session, coded)
    assert (full.source, merged.source) == (CHECKPOINT, INCREMENTAL)
    rows = session.table(f"holdfast.`{coded.group}`.counts").select("message_key", "json").collect()
    assert {row["message_key"]: json.loads(row["json"]) for row in rows} == {
        key: [[0, 1, 2], "0.30"] for key in counted(3)
    }

    wipe(coded)
    coded.do(Restore(coded.group, at="latest"))
    coded.do(Deploy(coded.group))
    coded.processed(KEYS * 3)
    coded.feed(KEYS, 2)
    coded.processed(KEYS * 5)
    assert coded.logged() == counted(5)
    assert coded.verbs.audit(coded.group, ())[0].differences == ()
