"""A processor under a supervisor, beside a session of Spark."""

from tests.operating import operated

__all__ = ["operated"]
