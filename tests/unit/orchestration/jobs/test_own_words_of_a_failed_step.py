"""A failed step shows Holdfast's error with its action, not the client library's error that caused it."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast.infra.kafka.errors import CoordinatorMoving
from holdfast.orchestration.jobs.failures import own_words

OURS = "Kafka could not read the offsets of group fleet within 10 s: NOT_COORDINATOR."


def refuse() -> None:
    raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))


def explain() -> None:
    try:
        refuse()
    except KafkaException as failure:
        raise CoordinatorMoving(OURS, action="Check that all brokers run; then try again.") from failure


@pytest.mark.parametrize(
    ("fails", "said"),
    [(explain, f"{OURS} What to do: Check that all brokers run; then try again."), (refuse, "NOT_COORDINATOR")],
    ids=["ours, caused by the client's", "the client's alone"],
)
def test_a_failed_step_is_told_in_the_words_that_say_what_to_do(fails: Any, said: str) -> None:
    @dg.op
    def step() -> None:
        fails()

    @dg.job
    def work() -> None:
        step()

    result = work.execute_in_process(raise_on_error=False)
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    error = failed.step_failure_data.error
    assert error is not None
    assert (error.cls_name or "").startswith("Dagster")
    words = own_words(error)
    assert words is not None
    assert said in words
    assert ("KafkaException" in words) == (fails is refuse)


def test_without_an_error_nothing_is_said() -> None:
    assert own_words(None) is None
