"""Bugs that tests plant in the messages of the webhook sensor. Each is a patch.

The checks of the simulated webhook (``operation_webhook``) must detect each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.processors.lifecycle.plans import way_on
from holdfast.processors.lifecycle.recovery.messages import state_messages, webhook_messages
from holdfast.processors.lifecycle.recovery.messages.webhook_messages import Need


def _not_told(kind: str) -> Callable[[pytest.MonkeyPatch], None]:
    """The bug: no message reports problems of this kind."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = state_messages.need_of

        def need_of(*given: Any, **named: Any) -> Need | None:
            found = original(*given, **named)
            return None if found is not None and found.kind == kind else found

        patch.setattr(state_messages, "need_of", need_of)

    return plant


def _told_at_each_tick(patch: pytest.MonkeyPatch) -> None:
    """The bug: a problem that lasts is reported as a new problem at each tick (run) of the sensor."""
    original = state_messages.follow

    def follow(known: Any, needs: Any, unread: Any, now: Any) -> Any:
        found = original(known, needs, unread, now)
        begun = [msgspec.structs.replace(each, since=now) for each in found.values() if each.ended is None]
        return {each.identity: each for each in begun}

    patch.setattr(state_messages, "follow", follow)
    patch.setattr(state_messages, "SETTLED_S", 0.0)


def _never_over(patch: pytest.MonkeyPatch) -> None:
    """The bug: no message reports the end of a problem."""
    original = state_messages.messages_of
    patch.setattr(
        state_messages, "messages_of", lambda *given: [each for each in original(*given) if each.event != "state.over"]
    )


def _clock_is_trusted(patch: pytest.MonkeyPatch) -> None:
    """The bug: if a problem began while the clock was ahead, it is reported only after its recorded start time."""
    patch.setattr(state_messages, "is_ahead", lambda moment, now: False)


def _first_action_stays(patch: pytest.MonkeyPatch) -> None:
    """The bug: if the user's action for a problem changes, the new action is not reported."""
    original = state_messages.follow

    def follow(*given: Any) -> Any:
        found = original(*given).items()
        return {name: msgspec.structs.replace(each, changed=None) for name, each in found}

    patch.setattr(state_messages, "follow", follow)


def _failed_is_silent(patch: pytest.MonkeyPatch) -> None:
    """The bug: no message reports an incident whose recovery has given up."""
    original = webhook_messages.of_incident
    patch.setattr(webhook_messages, "of_incident", lambda incident: original(incident)[:1])


def _without_its_arguments(patch: pytest.MonkeyPatch) -> None:
    """The bug: the message names the command to repeat after an interruption, but without most of its arguments.

    Only the verb and the processor are left.
    """
    original = way_on.command_of
    patch.setattr(way_on, "command_of", lambda request: " ".join(original(request).split()[:4]))


PLANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "an apply that broke off sends no message": _not_told("apply-broken-off"),
    "a processor that stays paused sends no message": _not_told("paused"),
    "a worker of another version sends no message": _not_told("other-version"),
    "an older copy of the registry sends no message": _not_told("registry-behind"),
    "a supervisor that hangs sends no message": _not_told("supervisor-silent"),
    "a state that lasts sends a message at each tick": _told_at_each_tick,
    "the end of a state sends no message": _never_over,
    "a state that began while the clock was ahead waits for that time": _clock_is_trusted,
    "a state whose action changes keeps its first message": _first_action_stays,
    "a recovery that stopped sends no message": _failed_is_silent,
    "the command of an interrupted apply lacks its arguments": _without_its_arguments,
}
