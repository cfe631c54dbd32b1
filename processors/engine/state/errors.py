"""The errors of local state.

HoldfastError
└── StateFailed
    ├── StateFolderTaken      another process holds the folder
    ├── StateFolderForeign    the folder belongs to another application
    ├── StateDiskFailed       the disk refused a write: full, read-only, broken
    ├── StateCorrupt          the data on disk is damaged; the changelog restores it
    └── StateIncoherent       state, changelog and input offsets do not match
"""

from __future__ import annotations

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.infra.exit_codes import EXIT_DISK_FAILURE


class StateFailed(HoldfastError):
    """Base class of all errors that make local state unusable."""


class StateFolderTaken(StateFailed, BadConfiguration):
    """Another live process holds the state folder of this slot (a worker's place on a machine)."""


class StateFolderForeign(StateFailed, BadConfiguration):
    """The state folder belongs to another application, or has another format."""


class StateDiskFailed(StateFailed):
    """The disk refused a read or a write."""

    cause = "disk-failed"
    exit_code = EXIT_DISK_FAILURE


class StateCorrupt(StateFailed):
    """The data on disk is damaged.

    The damaged database is renamed, and the state is restored from its changelog.
    """

    cause = "store-corrupt"
    exit_code = EXIT_DISK_FAILURE


class InputsParted(StateFailed, BadConfiguration):
    """A worker was assigned only some of the input topics that one store needs.

    The store would miss a part of each key's messages.
    """


class StateIncoherent(StateFailed, BadConfiguration):
    """State, changelog and input offsets do not match, so that processing would give wrong results."""
