"""The kinds of faults (failures) of a processor: fixed words that errors contain, and by which recovery decides.

Invariants:
    - A kind is a word of this list and never changes. An error with an unknown cause is ``failed``.
    - Error messages are never parsed. The kind comes from the ``cause`` of an error, or from the exit code if there is
      no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from holdfast.infra.exit_codes import CAUSE_OF_EXIT, EXIT_DISK_FAILURE

Kind = Literal[
    # Kinds of faults of a worker's process
    "dead",
    "stuck",
    "failed",
    "crash-loop",
    "lagging",
    "fenced",
    # Kinds of faults of the topics that the processor reads and writes
    "poison-message",
    "offsets-reset",
    "source-missing",
    "source-truncated",
    "source-recreated",
    "source-repartitioned",
    "output-missing",
    # Kinds of faults of the processor's state
    "store-corrupt",
    "state-missing",
    "changelog-missing",
    "changelog-recreated",
    "changelog-truncated",
    "changelog-altered",
    "changelog-repartitioned",
    "changelog-held",
    "restore-unfinished",
    "apply-broken-off",
    # Kinds of faults in the environment: brokers, disk, schema registry, supervisor
    "disk-full",
    "disk-failed",
    "broker-away",
    "schema-registry-away",
    "bad-configuration",
    "bad-deploy",
    "registry-behind",
    "supervisor-silent",
    "held-elsewhere",
    "unwanted-worker",
    "other-version",
    "other-settings",
    "paused",
    # Kinds that are no fault
    "healthy",
    "starting",
    "not-deployed",
]

#: Kinds of faults of topics and state. Every version of the processor has them alike, so that a return to a former
#: version repairs none of them.
OF_DATA: Final[frozenset[Kind]] = frozenset(
    {
        "offsets-reset",
        "source-truncated",
        "source-recreated",
        "source-repartitioned",
        "store-corrupt",
        "state-missing",
        "changelog-missing",
        "changelog-recreated",
        "changelog-truncated",
        "changelog-repartitioned",
        "changelog-held",
        "restore-unfinished",
    }
)

#: Maps each kind of fault to the title of its incident.
TITLES: Final[Mapping[Kind, str]] = {
    "dead": "its process is gone",
    "stuck": "its process makes no progress",
    "failed": "it stopped with an error",
    "crash-loop": "it crashes again after each restart",
    "lagging": "it works but falls behind",
    "fenced": "another worker took its place",
    "poison-message": "a message can't be processed",
    "offsets-reset": "the group's offsets were reset behind its state",
    "source-missing": "a source topic is missing",
    "source-truncated": "its source lost unprocessed records",
    "source-recreated": "its source topic was deleted and created again",
    "source-repartitioned": "its source and its changelogs have different partition counts",
    "output-missing": "a topic that it writes to is missing",
    "store-corrupt": "its local state is damaged",
    "state-missing": "its local state is missing",
    "changelog-missing": "a changelog is missing",
    "changelog-recreated": "a changelog was deleted and created again",
    "changelog-truncated": "a changelog lost records",
    "changelog-altered": "a changelog's configuration deletes state",
    "changelog-repartitioned": "a changelog has more partitions than its source",
    "changelog-held": "an open transaction blocks a changelog",
    "restore-unfinished": "a restore from the warehouse was interrupted",
    "apply-broken-off": "an apply was interrupted",
    "disk-full": "the disk is full",
    "disk-failed": "the disk returns errors",
    "broker-away": "no broker answers",
    "schema-registry-away": "its schema registry does not answer",
    "bad-configuration": "its configuration is wrong",
    "bad-deploy": "the deployed version does not start",
    "registry-behind": "the registry was replaced by an older copy",
    "supervisor-silent": "the supervisor does not answer",
    "held-elsewhere": "another installation runs it",
    "unwanted-worker": "a worker runs that the deployment does not have",
    "other-version": "a worker runs another version than the deployed one",
    "other-settings": "a worker runs with other settings than the deployed ones",
    "paused": "it is paused and reads no input",
    "healthy": "it works",
    "starting": "it is starting",
    "not-deployed": "it is not meant to run",
}

#: Faults (kinds of failures) that end by themselves. Recovery waits for their end and uses no attempt.
PASSING: Final[frozenset[Kind]] = frozenset({"broker-away", "schema-registry-away", "disk-full"})


def kind_of(name: str) -> Kind:
    """The kind with this name; ``failed`` for an unknown name, for example of a later Holdfast version."""
    for kind in get_args(Kind):
        if kind == name:
            found: Kind = kind
            return found
    return "failed"


def kind_of_error(error: Mapping[str, Any]) -> Kind:
    """The kind of fault of an error.

    ``error`` is the dictionary that ``HoldfastError.as_dict`` returned and the worker recorded.
    """
    return kind_of(str(error.get("cause") or "failed"))


def kind_of_end(exit_status: int | None) -> Kind:
    """The kind of fault of a process that ended without a recorded error."""
    if exit_status == EXIT_DISK_FAILURE:
        # This exit status means: the process could not write its error to a file. A full disk is the likely cause.
        return "disk-full"
    cause = None if exit_status is None else CAUSE_OF_EXIT.get(exit_status)
    return "dead" if cause is None else kind_of(cause)
