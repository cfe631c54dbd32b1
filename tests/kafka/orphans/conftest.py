"""The fixture of what was left behind."""

from tests.kafka.orphans.leaving import left

__all__ = ["left"]
