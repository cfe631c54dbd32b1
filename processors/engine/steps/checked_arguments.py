"""Checks the topics, names and functions that users pass to a step, already when the step is declared.

Invariants:
    - A function is refused only if a call with the step's arguments would raise a TypeError. A function whose
      parameters Python can't determine is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.infra.errors import BadConfiguration
from holdfast.processors.engine.steps.signatures import is_async, refuses, written
from holdfast.processors.engine.steps.topic import Topic


class StepInvalid(BadConfiguration):
    """The declaration of a step has an invalid argument."""


_PLAIN = ("value",)
_WITH_METADATA = ("value", "key", "timestamp", "headers")
_STATE = ("state",)


def check_topic(seen: Any, call: str) -> None:
    """Raises StepInvalid unless ``seen`` is a topic. ``call`` is the called method, for example ``app.dataframe``."""
    if isinstance(seen, Topic):
        return
    topic = f"app.topic({seen!r})" if isinstance(seen, str) else "app.topic(name)"
    raise StepInvalid(
        f"`{call}` got {seen!r} of type {type(seen).__name__}; expected a topic of `app.topic`.",
        action=f"Write `{call}({topic})`.",
        seen=repr(seen)[:80],
    )


def check_own_topic(topic: Topic, processor: str) -> None:
    """Raises StepInvalid if the output topic was declared by another application."""
    if topic.processor is not None and topic.processor != processor:
        raise StepInvalid(
            f"`to_topic` got topic {topic.name} of application {topic.processor}; the stream is of application "
            f"{processor}.",
            action=f"Declare the topic with this application: `app.topic({topic.name!r})`.",
            topic=topic.name,
        )


def check_text(seen: Any, what: str, example: str) -> None:
    """Raises StepInvalid unless ``seen`` is a text or None."""
    if seen is not None and not isinstance(seen, str):
        raise StepInvalid(
            f"{what} is {seen!r} of type {type(seen).__name__}; expected a text.",
            action=f"Write, for example, `{example}`.",
            seen=repr(seen)[:80],
        )


def check_step_function(func: Any, step: str, *, stateful: bool, metadata: bool) -> None:
    """Checks the function that was passed to ``apply``, ``update`` or ``filter``.

    Raises:
        StepInvalid: The value is not a function, or takes other arguments. If `stateful` or `metadata` is missing, the
            error says so.
    """
    _check_not_async(func, f"`{step}`")
    expected = (*(_WITH_METADATA if metadata else _PLAIN), *(_STATE if stateful else ()))
    if not refuses(func, len(expected)):
        return
    switches = [(True, False), (False, True), (True, True)]
    fitting = [
        _switched(state, meta)
        for state, meta in switches
        if state >= stateful and meta >= metadata and not refuses(func, (4 if meta else 1) + state)
    ]
    given = _switched(stateful, metadata)
    name = getattr(func, "__name__", "func")
    if fitting:
        action = f"Write `{step}({name}, {fitting[0]})`, or give the function these arguments."
    elif given:
        action = f"Give the function these arguments, or take out of `{step}` what it does not expect: `{given}`."
    else:
        action = f"Give the function these arguments. With `{step}(..., stateful=True)` it also gets the key's state."
    raise _wrong(func, f"`{step}`" + (f" with `{given}`" if given else ""), expected, action)


def _switched(stateful: bool, metadata: bool) -> str:
    return ", ".join(words for words, on in (("stateful=True", stateful), ("metadata=True", metadata)) if on)


def check_function(func: Any, what: str, arguments: Sequence[str], *, awaited: bool = False) -> None:
    """Raises StepInvalid unless ``func`` is None, or a function that can be called with these arguments.

    ``awaited`` is True if the step awaits the function; only then async functions are allowed.
    """
    if not awaited:
        _check_not_async(func, what)
    if func is not None and refuses(func, len(arguments)):
        raise _wrong(func, what, arguments, "Give the function these arguments.")


def _check_not_async(func: Any, what: str) -> None:
    if is_async(func):
        raise StepInvalid(
            f"{what} got the async function {written(func)}, which it does not await.",
            action="Write `def` in place of `async def`; or await it for each message by `sdf.apply_async(function)`.",
            seen=written(func),
        )


def _wrong(func: Any, what: str, arguments: Sequence[str], action: str) -> StepInvalid:
    expected = f"({', '.join(arguments)})"
    if not callable(func):
        return StepInvalid(
            f"{what} got {func!r} of type {type(func).__name__}; expected a function of {expected}.",
            action="Pass a function, without calling it.",
            seen=repr(func)[:80],
        )
    return StepInvalid(
        f"{what} got the function {written(func)}, which can't be called with {expected}.",
        action=action,
        seen=written(func),
        expected=expected,
    )
