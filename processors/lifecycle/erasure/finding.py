"""What the erasure of a key found in one place, and what is raised if the place still has copies."""

# tidy: allow-crumb because all modules of the room import it, and it imports none of them

from __future__ import annotations

from dataclasses import dataclass

from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.plans.certificates import Outcome


class NotYetGone(HoldfastError):
    """Copies of a key are left in a place, or the place could not be read; the apply stays open.

    Fields: ``place``.
    """


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of one place, and how it was found, as a sentence; ``until`` is for copies that stay."""

    outcome: Outcome
    how: str
    until: str = ""


def not_yet(place: str, what: str, action: str = "") -> NotYetGone:
    """The error for a place that still has copies, or could not be read; ``what`` is a sentence without a full stop."""
    again = "Repeat the command, or `holdfast apply resume N`: it continues here."
    return NotYetGone(f"{what}.", action=f"{action} {again}".strip(), place=place)
