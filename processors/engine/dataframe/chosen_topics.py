"""``to_topic`` with a function that chooses the topic of each message.

The topics of a processor are known before it starts: they are created, checked and fenced. So the function chooses
among the topics that the application declares and does not read. The step becomes one branch for each of them::

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
    """The function of ``to_topic`` returned something else than a topic that the application declares and writes."""


class Choice(Step):
    """Calls the function of ``to_topic`` with a message, and keeps the name of the topic that it returned."""

    __slots__ = ("_function", "chosen", "known")

    def __init__(self, function: Callable[[Any, Any, int, Any], Topic]) -> None:
        self._function = function
        #: The topics among which the function may choose.
        self.known: frozenset[str] = frozenset()
        #: The topic of the current message.
        self.chosen = ""

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The function of the user."""
        return (self._function,)

    def describe(self) -> str:
        """The topics, because the function does not show them."""
        return f"to_topic of {', '.join(sorted(self.known))}"

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        """Chooses the topic.

        Raises:
            TopicNotDeclared: The function returned something else.
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
    """Keeps the messages for which a topic was chosen."""

    __slots__ = ("_choice", "_topic")

    def __init__(self, choice: Choice, topic: str) -> None:
        self._choice, self._topic = choice, topic

    def inlined(self, value: str, named: Callable[[str, Any], str]) -> Inlined:
        """The comparison, without a call."""
        return Inlined((), f"{named('choice', self._choice)}.chosen == {self._topic!r}")

    def fail(self, value: Any, error: BaseException) -> NoReturn:
        """Raises what the comparison raised; it raises nothing by itself."""
        raise error

    def __call__(self, value: Any) -> bool:
        """Whether this topic was chosen for the current message."""
        return self._choice.chosen == self._topic


class Apart(Step):
    """Does nothing: a step behind which a branch begins."""

    __slots__ = ()

    def inlined(self, value: str, named: Callable[[str, Any], str]) -> Inlined:
        """Nothing at all."""
        return Inlined(("pass",))

    def fail(self, value: Any, error: BaseException) -> NoReturn:
        """Raises what ``pass`` raised, which is nothing."""
        raise error

    def __call__(self, value: Any) -> None:
        """Does nothing."""


@dataclass(slots=True)
class ChosenOutputs:
    """The step of one ``to_topic`` with a function, and its present branches.

    Attributes:
        node: The step that chooses; the later steps of the stream are its children, too.
        output: Makes the steps that send to a topic.
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
