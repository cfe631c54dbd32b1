"""What can go wrong with state on disk.

HoldfastError
└── StateFailed
    ├── StateFolderTaken      another process holds the folder
    ├── StateFolderForeign    the folder belongs to another application or partition layout
    ├── StateDiskFailed       the disk refused a write: full, read-only, broken
    ├── StateCorrupt          the data on disk is damaged; it is restored from the changelog
    └── StateIncoherent       state, changelog and input offsets do not belong together
"""

from __future__ import annotations

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, EXIT_DISK_FAILURE, HoldfastError


class StateFailed(HoldfastError):
    """The state of a task can't be used."""


class StateFolderTaken(StateFailed):
    """Another live process holds the state folder."""

    exit_code = EXIT_BAD_CONFIGURATION


class StateFolderForeign(StateFailed):
    """The state folder belongs to something else."""

    exit_code = EXIT_BAD_CONFIGURATION


class StateDiskFailed(StateFailed):
    """The disk refused."""

    cause = "disk-failed"
    exit_code = EXIT_DISK_FAILURE


class StateCorrupt(StateFailed):
    """The data on disk is damaged; the store is moved aside and restored from its changelog."""

    cause = "store-corrupt"
    exit_code = EXIT_DISK_FAILURE


class StateIncoherent(StateFailed):
    """State, changelog and input offsets do not belong together; running on would corrupt results."""

    exit_code = EXIT_BAD_CONFIGURATION
