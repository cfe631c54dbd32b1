"""Makes the fixture with the leftovers of a removed processor available to the tests of this folder."""

from tests.kafka.orphans.leaving import left

__all__ = ["left"]
