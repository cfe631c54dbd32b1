"""``to_topic`` with a function that chooses the topic of each message.

All output topics of a processor must be known before it starts, because they are created and checked then. The function
can therefore only choose among the topics that the application declares and does not read. The step gets one branch for
each of these topics::

    choose ──┬── chosen is "paid"     ──► to_topic paid
             ├── chosen is "refused"  ──► to_topic refused
             └── the later steps
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.step import Inlined, Step
from holdfast.processors.engine.steps.topic import Topic


class TopicNotDeclared(HoldfastError):
    """The function of ``to_topic`` returned something other than a topic that the application declares and writes."""


class Choice(Step):
    """The step that calls the function of ``to_topic`` for each message. ``chosen`` is the name of the chosen topic."""

    __slots__ = ("_function", "chosen", "known")

    def __init__(self, function: Callable[[Any, Any, int, Any], Topic]) -> None:
        self._function = function
        #: The topics among which the function may choose.
        self.known: frozenset[str] = frozenset()
        #: The name of the topic that the function chose for the current message.
        self.chosen = ""

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's function, which chooses the topic."""
        return (self._function,)

    def describe(self) -> str:
        """Returns the names of all topics that the function may choose.

        The names are a part of the processor's version.
        """
        return f"to_topic of {', '.join(sorted(self.known))}"

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        """Calls the user's function, and stores the name of the chosen topic in ``chosen``.

        Raises:
            TopicNotDeclared: The function returned something other than one of the topics in ``known``.
        """
        found = self._function(value, key, timestamp, headers)
        name = found.name if isinstance(found, Topic) else None
        if name not in self.known:
            called = getattr(self._function, "__name__", type(self._function).__name__)
            seen = repr(found) if name is None else f"topic {name}"
            raise TopicNotDeclared(
                f"The function {called} of `to_topic` returned {seen}; expected one of the topics that the application "
                f"declares and does not read: {', '.join(sorted(self.known)) or 'there are none'}.",
                action="Declare each topic by `app.topic(name)` before the application runs, and return that object.",
                seen=seen[:80],
            )
        self.chosen = name


class IsChosen(Step):
    """The filter before one output topic: it passes only messages for which the function chose this topic."""

    __slots__ = ("_choice", "_topic")

    def __init__(self, choice: Choice, topic: str) -> None:
        self._choice, self._topic = choice, topic

    def inlined(self, value: str, named: Callable[[str, Any], str]) -> Inlined:
        """Returns the comparison as Python code, so that the generated loop does not call this step."""
        return Inlined((), f"{named('choice', self._choice)}.chosen == {self._topic!r}")

    def fail(self, value: Any, error: BaseException) -> NoReturn:
        """Raises ``error`` unchanged, because a more specific error is not possible for a comparison."""
        raise error

    def __call__(self, value: Any) -> bool:
        """Whether this topic was chosen for the current message."""
        return self._choice.chosen == self._topic


class Apart(Step):
    """A step without effect, at the start of the branch of a ``to_topic`` with ``timestamp``.

    The branch sets the timestamp of the output. Later steps are outside of the branch, so they still get the message's
    own timestamp.
    """

    __slots__ = ()

    def inlined(self, value: str, named: Callable[[str, Any], str]) -> Inlined:
        """Returns the code ``pass``, because the step has no effect."""
        return Inlined(("pass",))

    def fail(self, value: Any, error: BaseException) -> NoReturn:
        """Raises ``error`` unchanged. The code ``pass`` raises no error of its own."""
        raise error

    def __call__(self, value: Any) -> None:
        """Does nothing."""


@dataclass(slots=True)
class ChosenOutputs:
    """The step of one ``to_topic`` with a function, with the branches to its output topics.

    Attributes:
        node: The step that chooses; the later steps of the stream are its children, too.
        output: Makes the step that sends to a topic.
    """

    node: Node
    output: Callable[[Topic], Node]
    _branches: list[Node] = field(default_factory=list)

    def lead_to(self, topics: Mapping[str, Topic], read: Collection[str]) -> None:
        """Make a branch for each declared topic that is not read by the application."""
        known = {name: topic for name, topic in topics.items() if name not in read}
        choice = self.node.function
        assert isinstance(choice, Choice)
        if choice.known == known.keys():
            return
        choice.known = frozenset(known)
        present = {id(each) for each in self._branches}
        later = [child for child in self.node.children if id(child) not in present]
        self._branches = [
            Node("filter", IsChosen(choice, name), children=[self.output(topic)]) for name, topic in known.items()
        ]
        self.node.children[:] = [*self._branches, *later]
