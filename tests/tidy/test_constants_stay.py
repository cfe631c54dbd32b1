"""Some processor definitions set a constant of the engine. They do not change the constant in the test process."""

from __future__ import annotations

from holdfast.processors.engine.runtime import purge
from tests.mechanics.constants import Constants, build_of

DEFINITION = """
from holdfast.processors.engine.runtime import purge

purge.PURGE_EVERY_S = 0.3


def build():
    return purge.PURGE_EVERY_S
"""


def test_a_definition_leaves_the_constants_of_the_engine() -> None:
    before = purge.PURGE_EVERY_S
    assert build_of(DEFINITION)() == before != 0.3


def test_a_changed_constant_is_named_and_restored() -> None:
    before, constants = purge.PURGE_EVERY_S, Constants()
    purge.PURGE_EVERY_S = 0.3
    assert constants.look() == [f"{purge.__name__}.PURGE_EVERY_S was {before!r} and is 0.3"]
    assert before == purge.PURGE_EVERY_S
    assert constants.look() == []
