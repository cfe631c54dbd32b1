"""If a stream has branches that get the same value, decides which step copies it: the first one that changes it."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from holdfast.processors.engine.steps.in_place import Touch, copied, own_object
from holdfast.processors.engine.steps.node import Node


class Shared(IntEnum):
    """Which part of a value other branches of the stream can also see, so that a change in it would reach them."""

    NOTHING = 0
    #: Only the objects inside the fields of the value. The value itself is seen by one branch only.
    PARTS = 1
    ALL = 2


def branches_of(node: Node, shared: Shared) -> list[tuple[Node, Shared]]:
    """Returns the next steps, each with the part of its value that other branches see.

    ``shared`` says which part of the result of ``node`` other branches see.
    """
    last = len(node.children) - 1
    return [(child, Shared.ALL if at < last else shared) for at, child in enumerate(node.children)]


def copy_before(node: Node, shared: Shared) -> Callable[[Any], Any] | None:
    """Returns the function that copies a step's value before the step; None if no copy is needed.

    No copy is needed if the step changes nothing that another branch sees. ``shared`` is the part that other branches
    see.
    """
    if shared is Shared.NOTHING:
        return None
    touch = node.touch
    if touch is Touch.ALL:
        return copied
    return own_object if touch is Touch.OBJECT and shared is Shared.ALL else None


def shared_behind(node: Node, shared: Shared) -> Shared:
    """Returns which part of a step's results other branches see.

    ``shared`` is the same for the value before the step.
    """
    copy = copy_before(node, shared)
    left = shared if copy is None else Shared.NOTHING if copy is copied else Shared.PARTS
    return min(left, Shared.PARTS) if node.of_engine is not None and node.of_engine.makes_object else left


def separates(node: Node) -> bool:
    """Whether fields of the value must be separate objects, because a later step may change the objects in them."""
    may_share = node.of_engine is not None and node.of_engine.may_share_parts
    return may_share and any(each.touch is Touch.ALL for child in node.children for each in child.walk())
