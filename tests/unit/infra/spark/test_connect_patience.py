"""If a Spark Connect server is unavailable, the first call retries for half a minute; later calls fail at once."""

from __future__ import annotations

import grpc
import pytest

from holdfast.infra.spark import connect_patience
from holdfast.infra.spark.connect_patience import AWAY_S, FORGOTTEN_AFTER_S, PatientOnce


class Away(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def trailing_metadata(self) -> None:
        """The error carries no metadata."""


class Wrong(Away):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INVALID_ARGUMENT


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


def test_it_is_asked_again_for_half_a_minute_and_then_no_more_until_it_was_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(connect_patience, "time", clock)
    policy = PatientOnce()
    assert not policy.can_retry(Wrong())
    assert policy.can_retry(Away())
    clock.now += AWAY_S - 1
    assert policy.can_retry(Away())
    clock.now += 1
    assert not policy.can_retry(Away())
    assert not policy.can_retry(Away()), "the next call does not wait anew"
    clock.now += FORGOTTEN_AFTER_S + 1
    assert policy.can_retry(Away()), "it was back meanwhile"
