"""Carries out each stage of a plan by a call to the object (port) that is responsible for the stage.

Invariants:
    - Every stage of ``stages.Stage`` has a branch here; the type checker enforces it.
    - This module makes no decisions. It passes the values of a stage to the port, whose errors are raised unchanged.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.lifecycle.plans import stages
from holdfast.processors.lifecycle.plans.apply import Done, ProgressLog
from holdfast.processors.lifecycle.plans.explanation import count_of, in_bytes


class TopicChanges(Protocol):
    """Creates, configures and deletes Kafka topics."""

    def create(self, spec: TopicSpec) -> bool:
        """Create a topic; returns False if it already exists."""

    def alter(self, name: str, config: Mapping[str, str]) -> None:
        """Set configuration entries of a topic."""

    def delete(self, name: str) -> None:
        """Delete a topic; no error if it does not exist."""


class Runner(Protocol):
    """Starts and stops the workers of processors, and waits until they run."""

    def make_release(self, processor: str, stage: stages.MakeRelease) -> Done:
        """Copy the code of a version and record it as a release."""

    def run(self, processor: str, stage: stages.RunProcessor, tell: ProgressLog) -> Done:
        """Start the worker in every slot as the stage specifies, and wait until every input partition is processed.

        A slot is the place of one worker.
        """

    def stop(self, processor: str, *, for_good: bool) -> Done:
        """Stop the worker in every slot after a final commit, and wait until all processes have ended.

        A slot is the place of one worker. ``for_good`` records the stop, so that recovery does not restart the
        processor.
        """

    def adopt(self, processor: str, stage: stages.AdoptDeployment) -> Done:
        """Record a deployment that is missing in Holdfast's registry; no worker is restarted."""


class Owners(Protocol):
    """Sends commands to the workers that own a processor's state. No other process may change this state."""

    def read_again(self, processor: str, stage: stages.ReadAgain, tell: ProgressLog) -> None:
        """Set the input offsets of tasks without state, so that they read input again."""

    def clear(self, processor: str, stage: stages.ClearKeys, tell: ProgressLog) -> tuple[int, tuple[str, ...]]:
        """Delete the selected keys; returns their number, and the paths of the files with the deleted entries."""

    def compact(self, processor: str, stage: stages.CompactStores, tell: ProgressLog) -> tuple[int, int]:
        """Rewrite the stores to free space; returns their bytes before and after."""


class LocalState(Protocol):
    """Renames and deletes the local state folders of a stopped processor."""

    def set_aside(self, tasks: tuple[str, ...], name: str) -> int:
        """Rename the state folders of these tasks to ``name``; returns the number of renamed folders."""

    def delete_aside(self, tasks: tuple[str, ...], name: str) -> int:
        """Delete the folders that were renamed to ``name``; returns their number."""


#: Function that tests a new version on the last messages (a proof); raises an error if the version fails.
Prove = Callable[[str, stages.ProveVersion, ProgressLog], Done]
#: Function that builds stores again while their processors run, and then replaces the old stores.
Shadows = Callable[[str, stages.ShadowStage, ProgressLog], Done]
#: Function that writes the content of warehouse tables to stores.
FromTables = Callable[[str, stages.TableStage, ProgressLog], Done]
#: Function that sends messages of dead letters again, and deletes dead letters.
Letters = Callable[[str, stages.LetterStage, ProgressLog], Done]
#: Function that archives and deletes orphans (resources without an owner), and creates deleted topics again.
Orphans = Callable[[stages.OrphanStage], Done]


#: Function that removes the copies of an erased key, and records the proofs.
Erasing = Callable[[str, stages.EraseStage, ProgressLog], Done]


class Transactions(Protocol):
    """Aborts hanging transactions of any producer."""

    def abort_hanging(self, stage: stages.AbortTransaction) -> bool:
        """Abort the transaction; returns False if it is no longer open."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Carries out the stages of a plan; implements ``apply.Executor``."""

    topics: TopicChanges
    runner: Runner
    owners: Owners
    #: Function of a processor that returns its state folders.
    local: Callable[[str], LocalState]
    #: Function of a processor and stores; raises an error if the local state of the stopped processor is incomplete.
    check_local: Callable[[str, tuple[str, ...]], None]
    prove: Prove
    shadows: Shadows
    transactions: Transactions
    tables: FromTables
    letters: Letters
    # called only for stages about orphans (resources without an owner), because the call imports the catalog's library
    orphans: Callable[[], Orphans]
    # called only for stages of an erasure, because the call imports the libraries of all copies
    erasing: Callable[[], Erasing]

    def __call__(self, processor: str, stage: stages.Stage, tell: ProgressLog) -> Done:
        """Carry out one stage of a plan, and return its result."""
        if isinstance(stage, stages.ShadowStage):
            return self.shadows(processor, stage, tell)
        if isinstance(stage, stages.TableStage):
            return self.tables(processor, stage, tell)
        if isinstance(stage, stages.LetterStage):
            return self.letters(processor, stage, tell)
        if isinstance(stage, stages.OrphanStage):
            return self.orphans()(stage)
        if isinstance(stage, stages.EraseStage):
            return self.erasing()(processor, stage, tell)
        match stage:
            case stages.CreateTopic() | stages.SetTopicConfig() | stages.DeleteTopic():
                return self._change_topic(stage)
            case stages.MakeRelease():
                return self.runner.make_release(processor, stage)
            case stages.ProveVersion():
                return self.prove(processor, stage, tell)
            case stages.RunProcessor():
                return self.runner.run(processor, stage, tell)
            case stages.StopProcessor():
                return self.runner.stop(processor, for_good=stage.for_good)
            case stages.AdoptDeployment():
                return self.runner.adopt(processor, stage)
            case stages.AbortTransaction():
                ended = self.transactions.abort_hanging(stage)
                where = f"{stage.topic}[{stage.partition}] from offset {stage.start_offset}"
                return Done(f"transaction on {where} {'aborted' if ended else 'was no longer open'}")
            case stages.CompactStores():
                before, after = self.owners.compact(processor, stage, tell)
                return Done(f"stores rewritten: {in_bytes(before)} before, {in_bytes(after)} after", before)
            case stages.ClearKeys():
                keys, paths = self.owners.clear(processor, stage, tell)
                set_to = f"; input offsets set to {offsets_text(stage.positions)}" if stage.positions else ""
                # If input offsets were set back, the worker reads the input again, which restores the keys. So the
                # result does not name the command that writes the exported keys back.
                undo = "" if stage.positions or not stage.can_be_undone else put_back_by(processor, paths)
                return Done(f"{count_of(keys, 'key')} deleted{set_to}{written_to(paths)}{undo}", keys)
            case stages.ReadAgain():
                self.owners.read_again(processor, stage, tell)
                return Done(f"input offsets set to {offsets_text(stage.positions)}")
            case stages.CheckLocalState():
                self.check_local(processor, stage.stores)
                return Done("local state of every task is whole")
            case stages.SetStateAside():
                moved = self.local(processor).set_aside(stage.tasks, stage.name)
                return Done(f"local state of {count_of(moved, 'task')} set aside as {stage.name}")
            case stages.DeleteStateAside():
                gone = self.local(processor).delete_aside(stage.tasks, stage.name)
                return Done(f"{count_of(gone, 'former state folder')} deleted")
            case _:
                assert_never(stage)

    def _change_topic(self, stage: stages.CreateTopic | stages.SetTopicConfig | stages.DeleteTopic) -> Done:
        if isinstance(stage, stages.DeleteTopic):
            self.topics.delete(stage.name)
            return Done(f"{stage.name} deleted")
        if isinstance(stage, stages.SetTopicConfig):
            self.topics.alter(stage.name, stage.config)
            return Done(f"configuration of {stage.name} set: {', '.join(sorted(stage.config))}")
        made = self.topics.create(TopicSpec(stage.name, stage.partitions, stage.replication, stage.config))
        return Done(f"{stage.name} created" if made else f"{stage.name} already exists")


def written_to(paths: Sequence[str]) -> str:
    """The paths of export files as the end of a sentence, for example ``; written before to /tmp/a.json``."""
    return f"; written before to {', '.join(paths)}" if paths else ""


def put_back_by(processor: str, paths: Sequence[str]) -> str:
    """The commands that write export files back to their stores, oldest file first, as a further sentence."""
    commands = [f"`holdfast restore {processor} --from-file {shlex.quote(path)} --yes`" for path in paths]
    return f". Undo: {', then '.join(commands)}" if commands else ""


def offsets_text(offsets: Mapping[str, Mapping[int, int]], shown: int = 6) -> str:
    """Offsets as text, for example ``topic[0]=5, topic[1]=7 and 3 more``."""
    texts = [
        f"{topic}[{number}]={at}" for topic, parts in sorted(offsets.items()) for number, at in sorted(parts.items())
    ]
    rest = "" if len(texts) <= shown else f" and {len(texts) - shown} more"
    return ", ".join(texts[:shown]) + rest
