"""Makes the fixture of a removed processor's leftovers available to the tests of this folder."""

from tests.kafka.orphans.leaving import left

__all__ = ["left"]
