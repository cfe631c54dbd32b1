"""The verbs' own fixture."""

from tests.parts.operated import operated

__all__ = ["operated"]
