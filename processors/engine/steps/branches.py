"""Decides which step copies a value that several branches of a stream get: the first step that changes the value."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from holdfast.processors.engine.steps.in_place import Touch, copied, own_object
from holdfast.processors.engine.steps.node import Node


class Shared(IntEnum):
    """The part of a value that other branches of the stream can also see.

    If a step changes this part, the other branches see the change.
    """

    NOTHING = 0
    #: Other branches see only the objects in the value's fields. The value itself belongs to one branch.
    PARTS = 1
    ALL = 2


def branches_of(node: Node, shared: Shared) -> list[tuple[Node, Shared]]:
    """Returns the child steps of ``node``, each with the part of its input value that other branches still read.

    Each child except the last shares the whole value with the children after it. The last child shares only ``shared``,
    the part that branches outside of ``node`` still read.
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

    ``shared`` is the part of the step's input value that other branches see.
    """
    copy = copy_before(node, shared)
    left = shared if copy is None else Shared.NOTHING if copy is copied else Shared.PARTS
    return min(left, Shared.PARTS) if node.of_engine is not None and node.of_engine.makes_object else left


def separates(node: Node) -> bool:
    """Whether the fields of a step's result must contain separate objects.

    This is needed if the step may put one object into two fields, and a later step may change such an object.
    """
    may_share = node.of_engine is not None and node.of_engine.may_share_parts
    return may_share and any(each.touch is Touch.ALL for child in node.children for each in child.walk())
