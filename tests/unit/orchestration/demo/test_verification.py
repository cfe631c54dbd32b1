"""Which differences the demo's verification counts as a mismatch, and how it reports them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from holdfast.orchestration.demo.lost_or_doubled import SequenceCheck
from holdfast.orchestration.demo.verification import ProcessorVerdict, copies_checked, copies_of
from holdfast.processors.audits.comparison import Side
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of

PRINT = fingerprint_of([(b"key", b"value")])
GOOD = ProcessorVerdict(
    processor="fleet",
    keys=1,
    differing=0,
    examples=(),
    copies=dict.fromkeys(Side, PRINT),
    outputs=SequenceCheck(4, 1, 0, 0, 0, 0),
    dead_letters=2,
    dead_letters_expected=2,
)


def moment(partition: int, **wholes: Fingerprint) -> SimpleNamespace:
    return SimpleNamespace(partition=partition, wholes={Side(name): whole for name, whole in wholes.items()})


def test_copies_are_summed_over_partitions_and_the_checkpoints_comparison_counts_before_the_tables() -> None:
    other = fingerprint_of([(b"another", b"value")])
    now = (moment(0, store=PRINT, changelog=PRINT), moment(1, store=other, changelog=other, warehouse=other))
    at_the_table = moment(0, store=other, changelog=other, warehouse=PRINT)
    both = PRINT + other
    assert copies_of(SimpleNamespace(moments=(*now, at_the_table))) == dict.fromkeys(Side, both)


def test_copies_are_those_of_the_check_where_it_compared_all_three() -> None:
    other = fingerprint_of([(b"another", b"value")])
    told = {"store_fingerprint": PRINT.hex, "changelog_fingerprint": PRINT.hex, "warehouse_fingerprint": other.hex}
    without = {name: text for name, text in told.items() if name != "store_fingerprint"}
    found = copies_checked({"fleet": told, "routes": without, "delays": {}})
    assert found == {"fleet": {Side.STORE: PRINT, Side.CHANGELOG: PRINT, Side.WAREHOUSE: other}}
    assert replace(GOOD, copies=found["fleet"]).mismatches == 1


def test_agreement_is_no_mismatch_and_says_nothing() -> None:
    assert (GOOD.mismatches, GOOD.sentences()) == (0, [])


def test_each_kind_of_mismatch_counts_and_is_told() -> None:
    bad = [
        replace(GOOD, differing=2, examples=("N1", "N2")),
        replace(GOOD, copies={**GOOD.copies, Side.CHANGELOG: Fingerprint()}),
        replace(GOOD, outputs=SequenceCheck(4, 1, 0, 1, 0, 0)),
        replace(GOOD, dead_letters=1),
    ]
    assert [one.mismatches for one in bad] == [2, 1, 1, 1]
    assert [len(one.sentences()) for one in bad] == [1, 1, 1, 1]
    assert "2 keys differ from Spark's result, such as N1, N2" in bad[0].sentences()[0]
