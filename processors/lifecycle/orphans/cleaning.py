"""Reads the facts of orphans, and carries out the stages of the commands ``clean`` and ``put-back``.

An orphan is a resource without an owner. An apply carries out the stages of a plan. If its process is killed in a
stage, the resumed apply repeats that stage. The result depends on the moment of the kill:
    1. During the copy: the incomplete copy is deleted, and a new copy is made.
    2. After the begin of the deletion was recorded: the deletion is finished.
    3. After the deletion, before its end was recorded: the end is recorded.

Invariants:
    - One process at a time changes an archive.
    - Directly before a deletion, the owners, the running groups and the facts of the orphan are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from holdfast.infra.database.registry import Registry
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_REFUSED
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.processors.lifecycle.orphans.archive import Archive, copied_files
from holdfast.processors.lifecycle.orphans.facts import orphans_of
from holdfast.processors.lifecycle.orphans.kinds import OrphanChanged, Thing, changed, thing_of
from holdfast.processors.lifecycle.orphans.owned import Defined, in_use
from holdfast.processors.lifecycle.orphans.put_back import put_back
from holdfast.processors.lifecycle.plans.apply import ApplyFailed, Done
from holdfast.processors.lifecycle.plans.erased_keys import ErasedKeys
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.orphans import (
    Archived,
    Deletion,
    Kind,
    Look,
    Manifest,
    Orphan,
    OrphanFacts,
    Subject,
)
from holdfast.processors.lifecycle.plans.stages import ArchiveOrphan, DeleteOrphan, OrphanStage, PutTopicBack
from holdfast.processors.lifecycle.ports import now_utc


class CleaningFailed(HoldfastError):
    """A file operation failed; earlier stages remain done. Fields: ``kind``, ``name``."""


class OrphanOwned(ApplyFailed):
    """A resource that the plan would archive or delete has an owner again, so it was not changed.

    Fields: ``kind``, ``name``.
    """

    exit_code = EXIT_REFUSED


class OrphanCleaning:
    """Finds, archives and deletes the orphans (resources without an owner) of one installation.

    Implements ``orphan_facts.OrphanSource`` and ``execution.Orphans``.

    ``who`` is the user name for the records. ``defined`` is a function that loads the processors' definitions; it is
    called again before each change.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        topics: Topics,
        who: str,
        defined: Callable[[], Defined],
        clock: Callable[[], datetime] = now_utc,
    ) -> None:
        self._settings, self._registry, self._topics, self._who, self._clock = settings, registry, topics, who, clock
        self._defined = defined
        self._archive = Archive(settings.archive_folder)

    def orphans(self) -> OrphanFacts:
        """Every orphan (resource without an owner) with its present facts and its newest archived copy."""
        found, unseen = self._found()
        copies, unread = self._archive.newest()
        groups = self._topics.live_groups() if any(each.kind == "topic" for each in found) else {}
        subjects = [self._subject(each, copies.get((each.kind, each.name)), groups) for each in found]
        there = {(each.kind, each.name) for each in found}
        for (kind, name), copy in sorted(copies.items()):
            if copy.half_deleted and (kind, name) not in there:
                left = Orphan(kind, name, copy.manifest.processor, "it is gone, or has an owner again")
                subjects.append(Subject(left, Look(None), copy))
        grace = timedelta(days=self._settings.orphan_grace_days)
        return OrphanFacts(self._clock(), grace, tuple(subjects), (*unseen, *unread), self._inside())

    def topic_copy(self, topic: str) -> tuple[Archived | None, bool]:
        """The newest archived copy of a topic, and whether the topic exists."""
        return self._archive.newest()[0].get(("topic", topic)), topic in self._topics.describe([topic])

    def __call__(self, stage: OrphanStage) -> Done:
        """Carry out one stage.

        Raises:
            OrphanOwned: The orphan (resource without an owner) has an owner again.
            OrphanChanged: The orphan, or its copy, differs from the plan.
            ArchiveBusy: Another process holds the archive's lock.
            HoldfastError: Kafka refused a request, or a file operation failed. A repetition continues the stage.
        """
        with self._archive.held():
            if isinstance(stage, PutTopicBack):
                processors = dict.fromkeys(each.processor for each in self._registry.erasures.of())
                paths = self._settings.paths
                erased = [ErasedKeys.of(self._registry, paths, name) for name in processors]
                return put_back(self._archive, self._topics, stage, self._clock, erased)
            try:
                return self._copy(stage) if isinstance(stage, ArchiveOrphan) else self._delete(stage)
            except OSError as failed:
                raise CleaningFailed(
                    f"{stage.kind} {stage.name} could not be changed: {failed}.",
                    action="Check the rights of its folder and the disk, then repeat the command.",
                    kind=stage.kind,
                    name=stage.name,
                ) from failed

    def _found(self, only: str | None = None) -> tuple[tuple[Orphan, ...], tuple[str, ...]]:
        return orphans_of(self._defined(), self._settings, self._registry, self._topics, only)

    def _thing(self, kind: Kind, name: str) -> Thing:
        return thing_of(kind, name, self._settings, self._topics)

    def _subject(self, orphan: Orphan, copy: Archived | None, groups: Mapping[str, Set[str]]) -> Subject:
        try:
            used = self._used(orphan, groups)
            if used:
                return Subject(orphan, Look(None, used), copy)
            return Subject(orphan, self._thing(orphan.kind, orphan.name).look(orphan), copy)
        except (HoldfastError, OSError) as failed:
            why = failed.message if isinstance(failed, HoldfastError) else f"{failed}."
            return Subject(orphan, Look(None, f"it could not be read: {why}"), copy)

    def _used(self, orphan: Orphan, groups: Mapping[str, Set[str]]) -> str:
        """Why a running consumer group forbids a change of the orphan (resource without an owner), as a sentence.

        Empty if no running group forbids a change.
        """
        members = self._topics.members(orphan.processor) if orphan.forsaken else 0
        # The group's members are workers that Holdfast's registry does not list, or workers of another installation.
        if members:
            how = f"its group has {count_of(members, 'member')}. Stop them, then plan again."
            return f"{orphan.processor} runs: {how}"
        return in_use(orphan, groups)

    def _inside(self) -> Path | None:
        """The folder that is searched for orphans (resources without an owner) and also contains the archive.

        None if the archive is outside of all searched folders.
        """
        paths, root = self._settings.paths, self._archive.root.resolve()
        searched = (paths.state, paths.checkpoint_folders, Path(self._settings.checkpoint_store), paths.warehouse)
        return next((place for place in searched if root.is_relative_to(place.resolve())), None)

    def _copy(self, stage: ArchiveOrphan) -> Done:
        newest = self._archive.newest()[0].get((stage.kind, stage.name))
        if newest is not None and newest.manifest.facts == stage.facts and not newest.original_deleted:
            return Done(f"{stage.kind} {stage.name} was archived in {newest.folder}")
        orphan = self._orphan(stage)
        if orphan is None:
            return self._gone(stage)
        part = self._archive.begin(stage.kind, stage.name, self._clock())
        about = self._thing(stage.kind, stage.name).copy(orphan, stage.facts, part)
        manifest = Manifest(
            kind=stage.kind,
            name=stage.name,
            processor=orphan.processor,
            why=orphan.why,
            archived_at=self._clock(),
            who=self._who,
            facts=stage.facts,
            about=about,
            files=copied_files(part),
        )
        return Done(f"{orphan.title} archived in {self._archive.finish(part, manifest)}")

    def _delete(self, stage: DeleteOrphan) -> Done:
        copy = self._archive.newest()[0].get((stage.kind, stage.name))
        if copy is None or copy.id != stage.archive:
            raise OrphanChanged(
                f"The archived copy of {stage.kind} {stage.name} is not the one of the plan. Nothing was deleted.",
                action="Run `holdfast plan clean`.",
                kind=stage.kind,
                name=stage.name,
            )
        if copy.original_deleted:
            return Done(f"{stage.kind} {stage.name} was deleted; its archive is {copy.folder}")
        orphan, thing, facts = self._orphan(stage), self._thing(stage.kind, stage.name), copy.manifest.facts
        note = copy.deletion
        if note is not None and (orphan is None or thing.look(orphan).facts != facts):
            thing.finish(stage.name, note.leftovers, orphan=orphan is not None)
        elif orphan is None:
            return self._gone(stage)
        else:
            self._check_free(orphan, stage)
            note = Deletion(begun_at=self._clock(), who=self._who, leftovers=thing.leftovers(orphan, facts))
            self._archive.note_deletion(copy, note)
            thing.delete(orphan, facts, note.leftovers)
        self._archive.note_deletion(copy, msgspec.structs.replace(note, ended_at=self._clock()))
        return Done(f"{stage.kind} {stage.name} deleted; its archive is {copy.folder}")

    def _check_free(self, orphan: Orphan, stage: DeleteOrphan) -> None:
        """Raises OrphanChanged if a running group may use the orphan, or if a required full name was not given.

        An orphan is a resource without an owner. The user must give the full name of a topic whose records name no
        processor.
        """
        used = self._used(orphan, self._topics.live_groups() if orphan.kind == "topic" else {})
        if used:
            raise changed(orphan, used)
        if orphan.unsigned and not stage.by_name:
            raise changed(orphan, f"its records name no processor, so only `--only topic/{orphan.name}` deletes it.")

    def _orphan(self, stage: ArchiveOrphan | DeleteOrphan) -> Orphan | None:
        """The orphan that a stage would change; None if it has an owner or no longer exists.

        An orphan is a resource without an owner.
        """
        place = (stage.kind, stage.name)
        return next((each for each in self._found(stage.name)[0] if (each.kind, each.name) == place), None)

    def _gone(self, stage: ArchiveOrphan | DeleteOrphan) -> Done:
        """The result of a stage whose orphan (resource without an owner) was not found, because it no longer exists.

        Raises:
            OrphanOwned: The resource exists, but is no orphan: it has an owner again.
        """
        named = Orphan(stage.kind, stage.name, "", "")
        if self._thing(stage.kind, stage.name).look(named).facts is None:
            return Done(f"{named.title} is gone")
        raise OrphanOwned(
            f"{named.title} is no longer an orphan: it has an owner again.",
            action="Run `holdfast plan clean`.",
            kind=stage.kind,
            name=stage.name,
        )
