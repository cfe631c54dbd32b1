"""Fixtures of a supervised processor, beside a Spark session."""

from tests.parts.operated import operated

__all__ = ["operated"]
