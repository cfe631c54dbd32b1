"""The hypothesis state machine: it draws actions on a store and checks all promises after each action."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from holdfast.processors.engine.schema.types import INFERRED
from tests.spark.model import drawn
from tests.spark.model.actions import ACTIONS, WEIGHED, Actions
from tests.spark.model.checks import PromiseBroken
from tests.spark.model.life import Life, World

#: The number of lives (sequences of actions on a store) in a test case, and of test cases in a file. Each file may run
#: in a separate test process with a separate JVM.
SEQUENCES, CASES_OF_A_FILE = 50, 10
#: The number of lives (sequences of actions on a store) in the test case of `make test`.
SHORT = 1
#: Timeout of a test case, in seconds. A life (sequence of actions on a store) takes seven seconds of CPU.
PATIENCE_S = 3600


@dataclass(frozen=True, slots=True)
class Failure:
    """A life (sequence of actions on a store) that broke a promise of the product or raised an error.

    ``told`` has the actions that led to the failure.
    """

    sequence: int
    promise: str
    detail: str
    told: tuple[str, ...]

    def text(self) -> str:
        """The failure as text: the number of the life (sequence), the broken promise, and the actions before it."""
        return "\n".join([f"sequence {self.sequence} broke {self.promise!r}: {self.detail}", *self.told])


@dataclass(frozen=True, slots=True)
class Course:
    """A fixed course for a life (sequence of actions on a store), in place of random actions.

    ``actions`` has the actions in order. ``given`` has fixed values of their arguments, by argument name. A name may be
    qualified by its action (``crash.dies_at``). If a value is a hypothesis strategy, the argument is drawn from it.
    """

    actions: tuple[str, ...]
    given: Mapping[str, Any] = field(default_factory=dict)


class Ended(Exception):
    """Raised to end the run at its first failure."""


def stop() -> None:
    """End the run. Hypothesis replays a failing case: it raises here again, so hypothesis sees the same failure."""
    raise Ended


class StoreMachine(RuleBasedStateMachine):
    """One life (sequence of actions on a store) as hypothesis's state machine. ``run`` sets the class variables."""

    world: ClassVar[World]
    failures: ClassVar[list[Failure]]
    course: ClassVar[Course | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.failed = False
        self.gone = 0
        self.actions: Actions

    @initialize(
        inferred=st.booleans(),
        booked=st.sampled_from([True] + 9 * [False]),
        first=drawn.changes(),
        second=drawn.changes(),
    )
    def begin(self, inferred: bool, booked: bool, first: Any, second: Any) -> None:
        """Make a store with its first snapshot."""
        inferred = self.given.get("inferred", inferred)
        life = Life(self.world, INFERRED if inferred else None, self.told.append)
        self.world.seams.booked = booked
        self.actions = Actions(life, self.told.append)
        self.act("begin", {"first": first, "second": second})

    @rule(data=st.data())
    def go(self, data: Any) -> None:
        """Run one action: a random one, or the next action of the course (fixed list of actions)."""
        names = WEIGHED if self.course is None else self.course.actions[self.gone : self.gone + 1]
        self.gone += 1
        if names:
            name = data.draw(st.sampled_from(names))
            self.act(name, {each: self.given_or_drawn(name, each, data) for each in ACTIONS[name][1]})

    @property
    def given(self) -> Mapping[str, Any]:
        return {} if self.course is None else self.course.given

    def given_or_drawn(self, action: str, name: str, data: Any) -> Any:
        found = self.given.get(f"{action}.{name}", self.given.get(name, ACTIONS[action][1][name]))
        return data.draw(found) if isinstance(found, st.SearchStrategy) else found

    def teardown(self) -> None:
        if hasattr(self, "actions"):
            try:
                self.act("end", {})
            finally:
                self.actions.life.forget()

    def act(self, name: str, given: dict[str, Any]) -> None:
        """Run an action and log it.

        If the action fails, this life (sequence of actions) has no further actions. Without a course, the run continues
        with the next life.
        """
        if self.failures and self.course is not None:
            stop()
        if self.failed:
            return
        self.told.append(f"{name} {given}")
        try:
            getattr(self.actions, name)(**given)
        except Exception as failure:
            self.failed = True
            broken = failure.promise if isinstance(failure, PromiseBroken) else type(failure).__name__
            self.failures.append(Failure(self.world.lives, broken, str(failure), tuple(self.told)))
        if self.failures and self.course is not None:
            stop()


def run(world: World, number: int, sequences: int, *, course: Course | None = None) -> list[Failure]:
    """Runs a number of lives (sequences of actions on a store); returns those that failed.

    ``number`` is the seed. With a course (fixed list of actions), the run ends at the first failure.
    """

    class Machine(StoreMachine):
        pass

    Machine.world, Machine.failures, Machine.course = world, [], course
    limits = settings(
        max_examples=sequences,
        # hypothesis counts the first snapshot as a step, too
        stateful_step_count=world.steps if course is None else 1 + len(course.actions),
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    with suppress(Ended, Flaky), pytest.MonkeyPatch.context() as patch:
        # Switch off hypothesis's mutations. With mutations, half of the lives (sequences of actions) repeat another
        # life with one changed value. Such lives find few bugs, and each takes seconds.
        patch.setattr(ConjectureRunner, "generate_mutations_from", lambda self, data: None, raising=False)
        run_state_machine_as_test(seed(number)(Machine), settings=limits)
    return Machine.failures
