"""The bounds of the commit interval: its default, its maximum, and the check of the application's arguments."""

from __future__ import annotations

from holdfast.processors.arguments import ApplicationInvalid, Guarantee, at_least
from holdfast.processors.engine.runtime.commit_pace import Bounds

#: The default: the interval adapts between these seconds.
COMMIT_INTERVAL_MIN_S, COMMIT_INTERVAL_S = 0.1, 1.0
#: A commit has to come well before ``TRANSACTION_S``, when the broker aborts its transaction.
COMMIT_INTERVAL_MAX_S = 10.0


def commit_bounds(longest: float | None, shortest: float | None, guarantee: Guarantee) -> Bounds:
    """The shortest and the longest time between commits, in seconds.

    Args:
        longest: ``commit_interval``.
        shortest: ``commit_interval_min``.
        guarantee: ``processing_guarantee``.

    Raises:
        ApplicationInvalid: The arguments are no interval, or longer than a transaction may stay open.
    """
    if longest is None:
        longest, shortest = COMMIT_INTERVAL_S, COMMIT_INTERVAL_MIN_S if shortest is None else shortest
    shortest = longest if shortest is None else shortest
    at_least("commit_interval", longest, 0.0)
    at_least("commit_interval_min", shortest, 0.0)
    if shortest > longest:
        raise ApplicationInvalid(
            f"commit_interval_min is {shortest:g} s, expected at most commit_interval, which is {longest:g} s.",
            action="Leave `commit_interval_min` out for a constant interval.",
            seen=shortest,
            expected=longest,
        )
    if guarantee == "exactly-once" and longest > COMMIT_INTERVAL_MAX_S:
        from holdfast.infra.kafka.producer import TRANSACTION_S

        raise ApplicationInvalid(
            f"commit_interval is {longest:g} s, expected at most {COMMIT_INTERVAL_MAX_S:g} s: the broker aborts a "
            f"transaction after {TRANSACTION_S:g} s.",
            action=f"Set `commit_interval` to at most {COMMIT_INTERVAL_MAX_S:g}, or "
            "`processing_guarantee='at-least-once'`.",
            seen=longest,
        )
    return Bounds(shortest, longest)
