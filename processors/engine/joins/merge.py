"""Rules for merging the two values of a join: the argument ``on_merge``. Names and rules are those of Quix Streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.processors.engine.formats.typed import fields_of, given_back
from holdfast.processors.engine.steps.checked_arguments import check_function

#: The argument ``on_merge`` of joins. ``raise`` refuses two values with a common field. ``keep-left`` and
#: ``keep-right`` take a common field from that side. A function of (left, right) returns the merged value; it gets None
#: for a side without a match.
OnMerge = Literal["raise", "keep-left", "keep-right"] | Callable[[Any, Any], Any]

_NAMED = ("raise", "keep-left", "keep-right")


class JoinInvalid(BadConfiguration):
    """The declaration of a join has an invalid argument."""


class MergeFailed(HoldfastError):
    """Two matching values can't be merged by the join's rule."""


def check_how(how: Any, allowed: tuple[str, ...]) -> None:
    """Raises JoinInvalid unless ``how`` is one of the allowed kinds of joins."""
    if how not in allowed:
        raise JoinInvalid(
            f"`how` is {how!r}, expected {' or '.join(map(repr, allowed))}.",
            action=f"Write, for example, `how={allowed[0]!r}`.",
            seen=repr(how),
        )


def check_merge(on_merge: Any) -> None:
    """Raises JoinInvalid for an unknown rule, and StepInvalid for a function that does not take two arguments."""
    if not callable(on_merge) and on_merge not in _NAMED:
        raise JoinInvalid(
            f"`on_merge` is {on_merge!r}, expected {', '.join(map(repr, _NAMED))}, or a function of (left, right).",
            action="Write, for example, `on_merge=lambda left, right: {**left, 'price': right}`.",
            seen=repr(on_merge),
        )
    if callable(on_merge):
        check_function(on_merge, "`on_merge`", ("left", "right"))


def name_of(on_merge: OnMerge) -> str:
    """Returns the rule's name for the description of a step; for a function, the text "function"."""
    return "function" if callable(on_merge) else on_merge


def merge_function(on_merge: OnMerge, *, left: Any = None, right: Any = None) -> Callable[[Any, Any], Any]:
    """Returns the rule as a function of (left, right). An argument of None means that this side has no match.

    ``left`` and ``right`` are the classes of typed messages. A user's function then gets instances, also where a
    message comes from the state.
    """
    if callable(on_merge):
        return on_merge if left is None and right is None else _of_instances(on_merge, left, right)
    if on_merge == "keep-left":
        return _keep_left
    return _keep_right if on_merge == "keep-right" else _without_overlap


def _of_instances(merge: Callable[[Any, Any], Any], left: Any, right: Any) -> Callable[[Any, Any], Any]:
    of_left, of_right = (None if kind is None else given_back(kind) for kind in (left, right))

    def merged(one: Any, other: Any) -> Any:
        return merge(
            one if one is None or of_left is None else of_left(one),
            other if other is None or of_right is None else of_right(other),
        )

    return merged


def _keep_left(left: Any, right: Any) -> dict[str, Any]:
    return {**_object(right, "right"), **_object(left, "left")}


def _keep_right(left: Any, right: Any) -> dict[str, Any]:
    return {**_object(left, "left"), **_object(right, "right")}


def _without_overlap(left: Any, right: Any) -> dict[str, Any]:
    first, second = _object(left, "left"), _object(right, "right")
    if both := sorted(map(str, first.keys() & second.keys())):
        raise MergeFailed(
            f"Both values of a join have the field{'s' if len(both) > 1 else ''} {', '.join(both)[:200]}.",
            action="Write `on_merge='keep-left'` or `on_merge='keep-right'`, or a function of (left, right).",
            fields=both[:20],
        )
    return {**first, **second}


def _object(value: Any, side: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if (fields := fields_of(value)) is not None:
        return fields
    raise MergeFailed(
        f"The {side} value of a join is of type {type(value).__name__}, expected an object of which fields are taken.",
        action="Write `on_merge=` as a function of (left, right).",
        side=side,
        seen=repr(value)[:80],
    )
