"""A dead letter can be written for any error that a function raises: its headers are short and always bytes."""

from dataclasses import replace

import pytest

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.dataframe.plain_loop import null_key
from holdfast.processors.engine.joins.merge import MergeFailed
from holdfast.processors.engine.runtime.task.failed_message import FailedMessage
from holdfast.processors.engine.runtime.task.failure_policy import (
    FAILURE_HEADERS,
    REASON_MAX,
    FailurePolicy,
    ProcessingFailed,
)


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


def failed(error):
    return FailedMessage(Partition("in", 0), 7, b"k", b"v", 1, None, error)


def test_what_an_error_says_to_do_reaches_whoever_reads_of_the_message():
    merging = MergeFailed("Both have the field id.", action="Write `on_merge='keep-left'`.")
    with pytest.raises(ProcessingFailed) as stopped:
        FailurePolicy(None, None, "p", "v1")(failed(merging))
    assert stopped.value.action == (
        "Write `on_merge='keep-left'`. Or set `dead_letter_topic` to put failed messages aside. Then restart: "
        "processing resumes at this offset."
    )
    letter = FailurePolicy("dead", None, "p", "v1")(failed(merging))
    assert letter is not None
    assert dict(letter.headers)["holdfast.error.action"] == b"Write `on_merge='keep-left'`."
    with pytest.raises(ProcessingFailed) as keyless:
        FailurePolicy(None, None, "p", "v1")(failed(null_key(len)))
    assert keyless.value.action.count("dead_letter_topic") == 1
    with pytest.raises(ProcessingFailed, match="ValueError") as plain:
        FailurePolicy(None, None, "p", "v1")(failed(ValueError("no")))
    assert plain.value.action.startswith("Correct the function or the message. Or set")


def test_a_result_of_a_window_that_fails_is_told_as_such_and_not_as_the_message_before_it():
    result = replace(failed(ValueError("no")), made="The result of the window of key b'k' was sent behind a[0]")
    with pytest.raises(ProcessingFailed, match="^The result of the window of key b'k'.* and raised ValueError") as told:
        FailurePolicy(None, None, "p", "v1")(result)
    assert told.value.action == (
        "Correct the steps behind the window. Or set `dead_letter_topic` to put failed results aside. Then restart: "
        "the result comes again. The message at that offset is not the cause."
    )


def test_a_dead_letter_that_fails_again_has_the_headers_of_its_last_failure_only():
    policy, headers = FailurePolicy("dead", None, "p", "v1"), [("trace", b"1"), ("holdfast.note", b"mine")]
    timer = replace(failed(ValueError("first")), headers=headers, timer="t", without_headers=True)
    told = MergeFailed("Both have the field id.", action="Rename it.")
    for error in (ValueError("second"), told, ValueError("last")):
        letter = policy(replace(timer, error=error))
        assert letter is not None
        timer = replace(failed(error), headers=letter.headers)
    names = [name for name, _ in letter.headers]
    assert len(names) == len(set(names))
    assert letter.headers[:2] == headers
    assert dict(letter.headers)["holdfast.error"] == b"last"
    assert not {"holdfast.timer", "holdfast.schedule", "holdfast.left_out", "holdfast.error.action"}.intersection(names)
    given = policy(replace(timer, timer="t", schedule="s", without_headers=True, error=told))
    assert given is not None
    assert {name for name, _ in given.headers if name not in ("trace", "holdfast.note")} == FAILURE_HEADERS
