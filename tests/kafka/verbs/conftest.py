"""Makes the fixture of a processor under a supervisor available to the tests of the verbs."""

from tests.parts.operated import operated

__all__ = ["operated"]
