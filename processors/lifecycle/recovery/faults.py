"""The kinds of faults that a processor can have, in words that never change: errors carry them, recovery reads them.

Invariants:
    - A kind is a word of this list; what an error of unknown cause says counts as ``failed``.
    - Nothing here reads prose: an error is known by its ``cause``, an end without words by its exit code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from holdfast.infra.errors import CAUSE_OF_EXIT, EXIT_DISK_FAILURE

Kind = Literal[
    # the process
    "dead",
    "stuck",
    "failed",
    "crash-loop",
    "lagging",
    "fenced",
    # what it reads
    "poison-message",
    "offsets-reset",
    "source-missing",
    "source-truncated",
    "source-recreated",
    "source-repartitioned",
    # its state
    "store-corrupt",
    "state-missing",
    "changelog-missing",
    "changelog-recreated",
    "changelog-truncated",
    "changelog-altered",
    "changelog-held",
    "restore-unfinished",
    "apply-broken-off",
    # the world around it
    "disk-full",
    "disk-failed",
    "broker-away",
    "bad-configuration",
    "bad-deploy",
    # it works, or is not meant to
    "healthy",
    "starting",
    "not-deployed",
]

#: What each kind is, in few words: the heading of its incident.
TITLES: Final[Mapping[Kind, str]] = {
    "dead": "its process is gone",
    "stuck": "its process does not get on",
    "failed": "it gave up",
    "crash-loop": "it comes up and dies again and again",
    "lagging": "it works, and falls behind",
    "fenced": "another one took its place",
    "poison-message": "a message can't be processed",
    "offsets-reset": "the group's offsets were reset behind its state",
    "source-missing": "a source topic is not there",
    "source-truncated": "its source lost records that were not processed yet",
    "source-recreated": "its source is another topic than the state was built from",
    "source-repartitioned": "its source has another number of partitions than its changelogs",
    "store-corrupt": "its local state is damaged",
    "state-missing": "its local state is gone",
    "changelog-missing": "a changelog is not there",
    "changelog-recreated": "a changelog was deleted and made again",
    "changelog-truncated": "a changelog lost records",
    "changelog-altered": "a changelog would delete state",
    "changelog-held": "an open transaction holds a changelog back",
    "restore-unfinished": "a restore from the warehouse was broken off",
    "apply-broken-off": "an apply was broken off",
    "disk-full": "the disk is full",
    "disk-failed": "the disk refuses",
    "broker-away": "no broker answers",
    "bad-configuration": "its configuration is wrong",
    "bad-deploy": "the version that was deployed does not start",
    "healthy": "it works",
    "starting": "it is on its way",
    "not-deployed": "it is not meant to run",
}

#: What passes by itself: it is waited for, and uses no attempts up.
PASSING: Final[frozenset[Kind]] = frozenset({"broker-away", "disk-full"})


def kind_of(name: str) -> Kind:
    """The kind of that name; ``failed`` for one that isn't known (a newer worker's, say)."""
    for kind in get_args(Kind):
        if kind == name:
            found: Kind = kind
            return found
    return "failed"


def kind_of_error(error: Mapping[str, Any]) -> Kind:
    """The kind of fault that an error is, as it was written down (``HoldfastError.as_dict``)."""
    return kind_of(str(error.get("cause") or "failed"))


def kind_of_end(exit_status: int | None) -> Kind:
    """The kind of fault that an end without words is."""
    if exit_status == EXIT_DISK_FAILURE:
        return "disk-full"  # a full disk takes no last words
    cause = None if exit_status is None else CAUSE_OF_EXIT.get(exit_status)
    return "dead" if cause is None else kind_of(cause)
