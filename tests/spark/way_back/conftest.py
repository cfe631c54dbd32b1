"""A processor under a supervisor, beside a session of Spark."""

from tests.parts.operated import operated

__all__ = ["operated"]
