"""What counts as a mismatch, and how it is told."""

from __future__ import annotations

from dataclasses import replace

from holdfast.orchestration.demo.sequences import SequenceCheck
from holdfast.orchestration.demo.verification import Copies, ProcessorVerdict, Verdict
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of

PRINT = fingerprint_of([(b"key", b"value")])
GOOD = ProcessorVerdict(
    processor="fleet",
    keys=1,
    differing=0,
    examples=(),
    copies=Copies(PRINT, PRINT, PRINT),
    outputs=SequenceCheck(4, 1, 0, 0, 0, 0),
    dead_letters=2,
    dead_letters_expected=2,
)


def test_agreement_is_no_mismatch_and_says_nothing() -> None:
    verdict = Verdict((GOOD, GOOD))
    assert (verdict.mismatches, verdict.sentences, verdict.keys, verdict.outputs) == (0, [], 2, 8)


def test_each_kind_of_mismatch_counts_and_is_told() -> None:
    bad = [
        replace(GOOD, differing=2, examples=("N1", "N2")),
        replace(GOOD, copies=Copies(PRINT, Fingerprint(), PRINT)),
        replace(GOOD, outputs=SequenceCheck(4, 1, 0, 1, 0, 0)),
        replace(GOOD, dead_letters=1),
    ]
    verdict = Verdict(tuple(bad))
    assert [one.mismatches for one in bad] == [2, 1, 1, 1]
    assert verdict.mismatches == 5
    assert len(verdict.sentences) == 4
    assert "2 keys differ from Spark's result, such as N1, N2" in verdict.sentences[0]
