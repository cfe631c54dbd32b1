"""Data classes about orphans (resources without an owner), their archived copies, and interrupted deletions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

Kind = Literal["topic", "group", "state", "checkpoint", "table"]
#: The format version of the archive's JSON documents.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Orphan:
    """A resource without an owner; ``size_bytes`` is None if unknown.

    ``aside``: whether this is state that was set aside (renamed). No process opens this state, not even a worker that
    uses the slot (place of one worker). ``forsaken``: whether the processor is not deployed here, so that members of
    its group run elsewhere. ``unsigned``: whether this is a topic whose records name no processor. Such a topic may
    belong to another installation, so it is deleted only if the user gives its full name. ``ends``: a topic's high
    watermarks when it was found. A later check compares these with the present ones, to detect that the topic is being
    written.
    """

    kind: Kind
    name: str
    processor: str
    why: str
    size_bytes: int | None = None
    aside: bool = False
    forsaken: bool = False
    unsigned: bool = False
    ends: Mapping[int, int] | None = None

    @property
    def title(self) -> str:
        """Kind and name, for example ``topic orders-totals-changelog``."""
        return f"{self.kind} {self.name}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an archived copy: the original resource, and the copy's files (name -> size in bytes).

    ``facts`` are the facts of the original before the copy. If its present facts equal them, the original is
    unchanged. ``about`` has further details, for example a topic's configuration or a table's number of rows.
    """

    kind: Kind
    name: str
    processor: str
    why: str
    archived_at: datetime
    who: str
    facts: dict[str, Any]
    about: dict[str, Any]
    files: dict[str, int]
    version: int = VERSION


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the deletion of an original resource after its copy was archived.

    ``leftovers`` are the parts that remain if the deletion is interrupted.
    """

    begun_at: datetime
    who: str
    leftovers: dict[str, Any] = {}
    ended_at: datetime | None = None
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Archived:
    """One complete copy of an orphan; ``deletion`` is set once the deletion of the original has begun.

    An orphan is a resource without an owner.
    """

    folder: Path
    manifest: Manifest
    deletion: Deletion | None = None

    @property
    def id(self) -> str:
        """The folder's name, which is the time of the copy and unique among the copies of one resource."""
        return self.folder.name

    @property
    def half_deleted(self) -> bool:
        """Whether a deletion of the original has begun, but its end is not recorded."""
        return self.deletion is not None and self.deletion.ended_at is None

    @property
    def original_deleted(self) -> bool:
        """Whether the original was deleted. If a resource has this name now, it was created later."""
        return self.deletion is not None and self.deletion.ended_at is not None


@dataclass(frozen=True, slots=True)
class Look:
    """The present facts of an orphan (resource without an owner).

    Args:
        facts: The orphan's facts; None if the orphan does not exist or could not be read.
        blocked: The reason why the orphan must not be changed, as a sentence; empty if it may be changed.
        amount: The orphan's size in records, files or rows, as text; empty if unknown.
    """

    facts: dict[str, Any] | None
    blocked: str = ""
    amount: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """An orphan (resource without an owner) with its present facts and its newest archived copy."""

    orphan: Orphan
    look: Look
    archived: Archived | None = None

    @property
    def unchanged(self) -> bool:
        """Whether the present facts of the orphan (resource without an owner) equal the facts of its copy."""
        facts = self.look.facts
        return self.archived is not None and facts is not None and facts == self.archived.manifest.facts


@dataclass(frozen=True, slots=True)
class OrphanFacts:
    """All orphans (resources without an owner) of the installation at one moment.

    Args:
        now: The time of the check.
        grace: The minimum time between archiving and deletion.
        subjects: The orphans, and the leftovers of interrupted deletions.
        unseen: A sentence for each topic, folder or store that could not be read.
        inside: A folder that is searched for orphans and contains the archive; normally None.
    """

    now: datetime
    grace: timedelta
    subjects: tuple[Subject, ...] = ()
    unseen: tuple[str, ...] = ()
    inside: Path | None = None


class OrphanSource(Protocol):
    """Reads the facts of orphans (resources without an owner); changes nothing."""

    def orphans(self) -> OrphanFacts:
        """All orphans (resources without an owner) with their facts.

        Raises:
            HoldfastError: Kafka or Holdfast's registry does not answer.
        """

    def topic_copy(self, topic: str) -> tuple[Archived | None, bool]:
        """The newest archived copy of a topic (None without a copy), and whether the topic exists."""
