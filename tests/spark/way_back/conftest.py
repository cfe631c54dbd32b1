"""Fixtures of a supervised processor and of a Spark session."""

from tests.parts.operated import operated

__all__ = ["operated"]
