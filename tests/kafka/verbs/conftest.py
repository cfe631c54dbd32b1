"""Makes the fixture of a processor under a supervisor available to the tests of verbs (operator commands)."""

from tests.parts.operated import operated

__all__ = ["operated"]
