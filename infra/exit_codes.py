"""The exit codes of the command line and of workers."""

from __future__ import annotations

from typing import Final

#: Success; for `plan` and `explain`: there is nothing to do.
EXIT_DONE = 0
#: Processing failed; the log has the error. Or: a command that compares found a difference, or a command that searches
#: found nothing.
EXIT_PROCESSING_FAILED = 1
#: `plan` or `explain` found changes that are not applied yet.
EXIT_CHANGES_PENDING = 2
#: The request was refused, or the user answered no; nothing was changed.
EXIT_REFUSED = 3
#: A setting or a right is wrong and must be corrected; a restart does not help.
EXIT_BAD_CONFIGURATION = 64
#: Kafka, or Dagster, did not answer.
EXIT_BROKER_UNAVAILABLE = 69
#: The disk refused a read or a write.
EXIT_DISK_FAILURE = 74

#: The user ended the command with Ctrl-C.
EXIT_INTERRUPTED = 130

#: Exit code -> its meaning, for all commands and workers; docs/commands.md shows this table.
EXIT_CODES: Final = {
    EXIT_DONE: "done; for `plan` and `explain`: nothing to do",
    EXIT_PROCESSING_FAILED: "a stage or a check failed, copies differ, or what was looked up does not exist",
    EXIT_CHANGES_PENDING: "`plan`, `explain`: changes are pending; `up`: a processor could not be deployed",
    EXIT_REFUSED: "refused, or a question was answered with no; nothing was changed",
    EXIT_BAD_CONFIGURATION: "wrong arguments or settings, a missing right, broken code",
    EXIT_BROKER_UNAVAILABLE: "a service does not answer: the broker, a schema registry, or Dagster",
    EXIT_DISK_FAILURE: "the disk refused a read or a write",
    EXIT_INTERRUPTED: "interrupted",
}

#: Exit code -> kind of fault (a word that recovery reads), for a failed process that wrote no error to a file.
CAUSE_OF_EXIT: Final = {EXIT_BAD_CONFIGURATION: "bad-configuration", EXIT_BROKER_UNAVAILABLE: "broker-away"}
