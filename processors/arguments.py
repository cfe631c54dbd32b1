"""What an application may be told, checked before anything runs."""

from __future__ import annotations

from typing import Literal

from infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from processors.runtime.pace import Bounds

#: Between these the interval between commits adapts where nothing else was asked for, in seconds.
COMMIT_INTERVAL_MIN_S, COMMIT_INTERVAL_S = 0.1, 1.0
#: The broker aborts a transaction after 15 s: a commit has to come well before.
COMMIT_INTERVAL_MAX_S = 10.0

Guarantee = Literal["exactly-once", "at-least-once"]


class ApplicationInvalid(HoldfastError):
    """An application was declared in a way that can't run."""

    exit_code = EXIT_BAD_CONFIGURATION


def commit_bounds(longest: float | None, shortest: float | None, guarantee: Guarantee) -> Bounds:
    """The seconds between commits that an application asks for.

    Args:
        longest: Its ``commit_interval``.
        shortest: Its ``commit_interval_min``.
        guarantee: What it promises.

    Raises:
        ApplicationInvalid: They are no interval, or longer than a transaction may be open.
    """
    if longest is None:
        longest, shortest = COMMIT_INTERVAL_S, COMMIT_INTERVAL_MIN_S if shortest is None else shortest
    shortest = longest if shortest is None else shortest
    at_least("commit_interval", longest, 0.0)
    at_least("commit_interval_min", shortest, 0.0)
    if shortest > longest:
        raise ApplicationInvalid(
            f"commit_interval_min is {shortest:g} s, expected at most commit_interval, which is {longest:g} s.",
            action="Leave commit_interval_min out for always the same interval.",
            seen=shortest,
            expected=longest,
        )
    if guarantee == "exactly-once" and longest > COMMIT_INTERVAL_MAX_S:
        raise ApplicationInvalid(
            f"commit_interval is {longest:g} s, but a transaction lives 15 s at the most.",
            action=f"Use at most {COMMIT_INTERVAL_MAX_S:g} s, or the guarantee at-least-once.",
            seen=longest,
        )
    return Bounds(shortest, longest)


def one_of(name: str, seen: str, allowed: tuple[str, ...]) -> None:
    """Refuse what is not among the allowed.

    Raises:
        ApplicationInvalid: It is not.
    """
    if seen not in allowed:
        raise ApplicationInvalid(
            f"{name} is {seen!r}, expected one of {', '.join(allowed)}.", action=f"Correct {name}.", seen=seen
        )


def at_least(name: str, seen: float, least: float) -> None:
    """Refuse what is less, or no number at all.

    Raises:
        ApplicationInvalid: It is.
    """
    if not seen >= least:
        raise ApplicationInvalid(
            f"{name} is {seen!r}, expected {least:g} or more.", action=f"Correct {name}.", seen=str(seen)
        )
