"""Audits on a real broker name each key whose value differs in store, changelog or table.

Repairs correct these keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.infra.warehouse.catalog import TableUnknown
from holdfast.orchestration import cli
from holdfast.processors.audits.comparison import Odd, Side
from holdfast.processors.audits.stores import StoreAudit
from holdfast.processors.audits.tables import SnapshotUnknown
from holdfast.processors.lifecycle.plans.requests import Backfill, Deploy, Restore, Stop
from tests.auditing import (
    Pairs,
    changelog_key,
    folded,
    manifest_of,
    placed,
    plant_in_changelog,
    plant_in_store,
    publish,
    stored,
)
from tests.parts.operated import Operated, operated

__all__ = ["operated"]

KEYS = 40
#: Keys at which tests plant a difference: a wrong value, a missing key, an extra key.
WRONG, MISSING, EXTRA = "key-30", "key-31", "a stranger's"
PLANTED = {WRONG: 99, MISSING: None, EXTRA: 5}


@pytest.fixture
def counting(operated: Operated) -> Operated:
    operated.bring_up()
    operated.feed(keys=KEYS, each=2)
    operated.processed(2 * KEYS)
    return operated


def partitions_of(pairs: Pairs) -> dict[str, int]:
    found = {key[5:-1].decode(): number for number, key, _ in pairs}
    return {**found, EXTRA: 0}


def audited(operated: Operated, *, warehouse: bool = True) -> StoreAudit:
    (audit,) = operated.verbs.audit(operated.group, (), warehouse=warehouse)
    return audit


def named(audit: StoreAudit) -> dict[str, Odd]:
    return {one.key[5:-1].decode(): one.odd for moment in audit.moments for one in moment.first}


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = cli.main(["audit", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def published(operated: Operated) -> Pairs:
    """Publish a correct snapshot of the current state. Returns its pairs."""
    parts = placed(operated)
    pairs = folded(operated, parts)
    publish(operated.settings, operated.group, pairs, manifest_of(operated.group, parts, pairs))
    return pairs


def planted(pairs: Pairs) -> Pairs:
    """Return a copy of the pairs with the planted differences, and with one pair twice."""
    kept = [pair for pair in pairs if pair[1] not in (changelog_key(WRONG), changelog_key(MISSING))]
    where = partitions_of(pairs)
    doubled = next(pair for pair in pairs if pair[1] == changelog_key("key-32"))
    wrong = (where[WRONG], changelog_key(WRONG), stored(99))
    return [*kept, doubled, wrong, (0, changelog_key(EXTRA), stored(5))]


@pytest.mark.thorough
def test_three_equal_copies_are_proved_at_one_offset(counting: Operated, capsys: pytest.CaptureFixture[str]) -> None:
    published(counting)
    code, (told,) = asked(capsys, counting.group, "--warehouse")
    assert code == 0
    assert (told["equal"], told["keys_differing"], told["repair"], told["snapshot"]["untouched"]) == (
        *(True, 0, []),
        True,
    )
    assert sum(part["keys"] for part in told["partitions"]) == KEYS
    for part in told["partitions"]:
        assert part["stored"] == part["folded"] == part["tabled"]
    assert cli.main(["audit", counting.group, "--warehouse"]) == 0


def test_what_is_planted_in_the_store_is_named_and_a_restore_mends_it(counting: Operated) -> None:
    where = partitions_of(folded(counting, placed(counting)))
    counting.do(Stop(counting.group))
    plant_in_store(counting, PLANTED, where)
    counting.do(Deploy(counting.group))
    published(counting)
    audit = audited(counting)
    assert named(audit) == dict.fromkeys(PLANTED, Odd.STORE)
    assert audit.differences
    two = audited(counting, warehouse=False)
    assert named(two) == dict.fromkeys(PLANTED, Odd.STORE_CHANGELOG)

    assert "apply restore" in audit.repair[0]
    counting.do(Restore(counting.group, tuple({where[name] for name in PLANTED}), "changelog"))
    assert audited(counting, warehouse=False).differences == ()


@pytest.mark.thorough
def test_what_strangers_write_to_the_changelog_is_named_and_it_is_made_anew_from_local_state(
    counting: Operated, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = placed(counting)
    where = partitions_of(folded(counting, parts))
    truth = {name: 2 for name in where if name != EXTRA} | {f"key-{number}": 3 for number in range(20)}
    # If another program writes a record with the store's value, the audit reports no difference. Only the newest value
    # of a key counts.
    plant_in_changelog(counting, {**PLANTED, "key-33": 2}, where)
    counting.feed(keys=20, each=1)
    counting.processed(2 * KEYS + 20)
    parts = placed(counting)
    seen = {key: value for _, key, value in folded(counting, parts)}
    pairs = [
        (where[name], changelog_key(name), seen[changelog_key(name)])
        for name in truth
        if name not in (WRONG, MISSING, "key-33")
    ]
    unspoilt = dict(_checkpointed(parts))
    pairs += [(where[name], changelog_key(name), unspoilt[changelog_key(name)]) for name in (WRONG, MISSING, "key-33")]
    publish(counting.settings, counting.group, pairs, manifest_of(counting.group, parts, pairs))

    audit = audited(counting)
    # the planted record of key-33 has another event time, so the audit counts it as another value
    assert named(audit) == dict.fromkeys([*PLANTED, "key-33"], Odd.CHANGELOG)
    shown = {one.key: one.entries for moment in audit.moments for one in moment.first}
    assert shown[changelog_key(WRONG)][Side.CHANGELOG].offset is not None
    assert shown[changelog_key(MISSING)][Side.CHANGELOG].values == ()

    assert "backfill" in audit.repair[0]
    counting.do(Stop(counting.group))
    counting.topics.delete(counting.changelog)
    counting.do(Backfill(counting.group, "counts", "local"))
    counting.do(Deploy(counting.group))
    assert audited(counting, warehouse=False).differences == ()
    assert counting.logged() == truth

    code, (told,) = asked(capsys, counting.group, "--warehouse")
    assert code == 1
    assert "there is nothing to compare it with" in told["differences"][0]
    assert "Take a full snapshot" in told["repair"][0]


def _checkpointed(parts: Any) -> Any:
    from holdfast.processors.engine.state.databases.checkpoint_reader import iterate_checkpoint

    for part in parts:
        yield from iterate_checkpoint(part.path, "counts")


@pytest.mark.thorough
def test_what_is_planted_in_the_table_is_named_whoever_wrote_it(
    counting: Operated, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = published(counting)
    publish(counting.settings, counting.group, planted(pairs), None)
    code, (told,) = asked(capsys, counting.group, "--store", "counts", "--warehouse")
    assert code == 1
    assert {row["key"]: row["wrong"] for row in told["keys"]} == dict.fromkeys([*PLANTED, "key-32"], "warehouse")
    by_key = {row["key"]: row for row in told["keys"]}
    assert (by_key[WRONG]["store"], by_key[WRONG]["changelog"], by_key[WRONG]["warehouse"]) == ("2", "2", "99")
    assert (by_key[MISSING]["warehouse"], by_key[EXTRA]["store"], by_key["key-32"]["warehouse"]) == (
        *("absent", "absent"),
        "2 and 2",
    )
    assert told["snapshot"]["untouched"] is False
    assert (told["keys_differing"], told["repair"][0].count("the warehouse is wrong")) == (4, 1)
    assert cli.main(["audit", counting.group, "--warehouse"]) == 1
    assert "What to do, 1" in capsys.readouterr().out
    assert audited(counting, warehouse=False).differences == ()


@pytest.mark.thorough
def test_a_table_older_than_the_state_is_compared_at_its_own_offsets(counting: Operated) -> None:
    pairs = published(counting)
    counting.feed(keys=20, each=1)
    counting.processed(2 * KEYS + 20)
    audit = audited(counting)
    assert audit.differences == ()
    assert [set(moment.prints) for moment in audit.moments] == [{Side.STORE, Side.CHANGELOG}] * 2 + [set(Side)] * 2
    assert {moment.place for moment in audit.earlier}.isdisjoint(each.moment.place for each in audit.partitions)

    manifest = audit.tabled.manifest if audit.tabled is not None else None
    publish(counting.settings, counting.group, planted(pairs), manifest)
    assert named(audited(counting)) == dict.fromkeys([*PLANTED, "key-32"], Odd.WAREHOUSE)
    for _ in range(3):  # new checkpoints replace the one that was taken at the table's offsets
        counting.client.checkpoint()
    assert named(audited(counting)) == dict.fromkeys([*PLANTED, "key-32"], Odd.CHANGELOG_WAREHOUSE)


@pytest.mark.thorough
def test_what_the_cleaner_took_is_told_and_is_no_difference(counting: Operated) -> None:
    published(counting)
    counting.feed(keys=KEYS, each=1)
    counting.processed(3 * KEYS)
    soon = {"segment.ms": "1000", "min.compaction.lag.ms": "0", "min.cleanable.dirty.ratio": "0.01"}
    counting.topics.alter(counting.changelog, {**soon, "max.compaction.lag.ms": "1000"})

    def judged() -> Mapping[str, int]:
        audit = audited(counting)
        assert audit.differences == ()
        return {"unjudged": audit.unjudged}

    counting.feed(keys=KEYS, each=1)  # new records close the old segments, so that log compaction may process them
    counting.wait_for(lambda: judged()["unjudged"] > 0, "the cleaner to have run")


@pytest.mark.thorough
def test_a_table_that_is_not_there_or_says_nothing_of_itself_is_refused(
    counting: Operated, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TableUnknown, match="has no tables yet"):
        audited(counting)
    publish(counting.settings, counting.group, [(0, b"k", b"v")], None)
    with pytest.raises(SnapshotUnknown, match="says at which offsets"):
        audited(counting)
    code, told = asked(capsys, counting.group, "--warehouse")
    assert (code, told["error"]["type"]) == (1, "SnapshotUnknown")


@pytest.mark.thorough
def test_a_partition_that_the_snapshot_does_not_have_is_told(counting: Operated) -> None:
    parts = placed(counting)
    pairs = folded(counting, parts)
    half = [pair for pair in pairs if pair[0] == 0]
    publish(counting.settings, counting.group, half, manifest_of(counting.group, parts[:1], half))
    audit = audited(counting)
    assert audit.differences == ("partition 1 is not in snapshot 1234abcd",)
    assert "Take a full snapshot" in audit.repair[0]
