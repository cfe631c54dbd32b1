"""The verbs' own fixture."""

from tests.operating import operated

__all__ = ["operated"]
