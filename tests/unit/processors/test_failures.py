"""Whatever a function raises, the dead letter can be written: its text is bounded, and always bytes."""

import pytest

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.failures import REASON_MAX, FailurePolicy
from holdfast.processors.engine.runtime.task import FailedMessage


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "begins"),
    [
        (ValueError("caf\udce9"), b"caf\\udce9"),
        (ValueError("x" * 2_000_000), b"x" * REASON_MAX),
        (Speechless(), b"(its text can't be made: RuntimeError)"),
    ],
    ids=["no UTF-8", "very long", "without a text"],
)
def test_a_dead_letter_can_be_written_whatever_was_raised(error, begins):
    policy = FailurePolicy("dead", None, "p", "v1")
    letter = policy(FailedMessage(Partition("in", 0), 7, b"k", b"v", 1, None, error))
    assert letter is not None
    reason = dict(letter.headers)["holdfast.error"]
    assert reason.startswith(begins)
    assert len(reason) < REASON_MAX + 100
