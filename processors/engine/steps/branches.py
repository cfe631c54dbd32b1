"""Which step of a branch copies its value: the first one that changes what other branches see, too."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from holdfast.processors.engine.steps.in_place import Touch, copied, own_object
from holdfast.processors.engine.steps.node import Node


class Shared(IntEnum):
    """What of a value other branches see, too."""

    NOTHING = 0
    #: What is inside of its fields; the object itself is the branch's own.
    PARTS = 1
    ALL = 2


def branches_of(node: Node, shared: Shared) -> list[tuple[Node, Shared]]:
    """The next steps, and what others see of the value that each gets; ``shared``: of the result of ``node``."""
    last = len(node.children) - 1
    return [(child, Shared.ALL if at < last else shared) for at, child in enumerate(node.children)]


def copy_before(node: Node, shared: Shared) -> Callable[[Any], Any] | None:
    """The copy that a step needs of its value; None if it changes nothing that another branch sees."""
    if shared is Shared.NOTHING:
        return None
    touch = node.touch
    if touch is Touch.ALL:
        return copied
    return own_object if touch is Touch.OBJECT and shared is Shared.ALL else None


def shared_behind(node: Node, shared: Shared) -> Shared:
    """What others see of a step's results; ``shared``: of the value before it."""
    copy = copy_before(node, shared)
    left = shared if copy is None else Shared.NOTHING if copy is copied else Shared.PARTS
    return min(left, Shared.PARTS) if node.of_engine is not None and node.of_engine.makes_object else left


def separates(node: Node) -> bool:
    """Whether fields of the value must not share parts, because a later step may change what is inside."""
    may_share = node.of_engine is not None and node.of_engine.may_share_parts
    return may_share and any(each.touch is Touch.ALL for child in node.children for each in child.walk())
