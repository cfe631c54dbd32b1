"""The contract of sources finds planted bugs: state and messages that do not match, and a loop without end."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from holdfast.sources import StatefulSource
from holdfast.testing import SourceContract

COUNT = 6


class Right(StatefulSource):
    """Sends six numbers, two in each unit."""

    def run(self) -> None:
        for number in range(self.state.get("next", 0), COUNT):
            if not self.running:
                return
            self.send(number)
            if number % 2:
                self.flush()

    def send(self, number: int) -> None:
        self.produce(json.dumps(number), key="k")
        self.state.set("next", number + 1)


class PositionAfterwards(Right):
    """Commits the messages before their position."""

    def send(self, number: int) -> None:
        self.produce(json.dumps(number), key="k")
        self.flush()
        self.state.set("next", number + 1)


class PositionBefore(Right):
    """Commits the position before its message."""

    def send(self, number: int) -> None:
        self.state.set("next", number + 1)
        self.flush()
        self.produce(json.dumps(number), key="k")


class Forgets(Right):
    """A source that keeps no position, so each start produces all messages again."""

    def run(self) -> None:
        self.state.set("next", 0)
        super().run()


class NeverEnds(Right):
    """Waits for the time of the clock, and does not see that it should end."""

    def run(self) -> None:
        super().run()
        while True:
            self.produce(b"9")
            self.flush()


def contract(made: type[StatefulSource]) -> SourceContract:
    class Contract(SourceContract):
        def source(self) -> StatefulSource:
            return made("numbers", shutdown_timeout=0.2)

        def expected(self) -> list[tuple[bytes, bytes]]:
            return [(b"k", json.dumps(number).encode()) for number in range(COUNT)]

    return Contract()


CHECKS: list[Callable[[SourceContract], None]] = [
    each for name, each in vars(SourceContract).items() if name.startswith("test_")
]


@pytest.mark.thorough
@pytest.mark.parametrize("check", CHECKS, ids=lambda each: each.__name__)
def test_a_right_source_passes(check: Callable[[SourceContract], None]) -> None:
    check(contract(Right))


@pytest.mark.parametrize(
    ("wrong", "check", "says"),
    [
        (PositionAfterwards, SourceContract.test_it_resumes_after_each_unit, "makes no progress"),
        (
            PositionBefore,
            SourceContract.test_a_kill_between_any_two_calls_loses_and_doubles_nothing,
            "1 messages are lost",
        ),
        (Forgets, SourceContract.test_each_message_is_sent_once, "6 messages are too many"),
        (NeverEnds, SourceContract.test_a_stop_ends_the_source, "did not return"),
    ],
)
def test_a_planted_bug_is_found(
    wrong: type[StatefulSource], check: Callable[[SourceContract], None], says: str
) -> None:
    with pytest.raises(AssertionError, match=says):
        check(contract(wrong))
