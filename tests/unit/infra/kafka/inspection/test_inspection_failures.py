"""While a broker starts, kafka-python (the second client library) raises errors.

Holdfast waits for the broker, and does not report that the broker refuses the client.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import kafka
import pytest
from kafka import errors

from holdfast.infra.kafka.errors import BrokerUnreachable, KafkaFailed
from holdfast.infra.kafka.inspection.inspection import Inspector

STARTING = (errors.UnknownBrokerIdError, errors.BrokerNotAvailableError, errors.CoordinatorNotAvailableError)


def inspected(patch: pytest.MonkeyPatch, *failures: type[Exception], then: type[Exception] | None = None) -> Inspector:
    """An inspector whose first requests raise the errors in ``failures``, one error each.

    Later requests raise the error ``then``. If ``then`` is None, they succeed.
    """
    left = chain(failures, repeat(then))

    def answer(**settings: Any) -> object:
        failure = next(left)
        if failure is not None:
            raise failure
        return object()

    patch.setattr(kafka, "KafkaAdminClient", answer)
    return Inspector("127.0.0.1:1", timeout_s=30.0 if then is None else 0.1)


@pytest.mark.parametrize("failure", STARTING)
def test_a_broker_that_is_not_registered_yet_is_waited_for(
    failure: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    inspected(monkeypatch, failure, failure)


@pytest.mark.parametrize("failure", [*STARTING, errors.NodeNotReadyError])
def test_a_broker_that_does_not_come_is_away(failure: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerUnreachable, match=failure.__name__) as told:
        inspected(monkeypatch, then=failure)
    assert told.value.cause == "broker-away"


def test_a_refusal_is_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaFailed, match="refused to connect this client: InvalidRequestError") as told:
        inspected(monkeypatch, then=errors.InvalidRequestError)
    assert not isinstance(told.value, BrokerUnreachable)
