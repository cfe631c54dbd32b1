"""Carries out each stage of a plan: thin code over ports.

Invariants:
    - Every stage of ``stages.Stage`` has a branch here; the type checker enforces it.
    - Nothing is decided here: a stage is carried out as it says, or the port's own error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.lifecycle.plans import stages
from holdfast.processors.lifecycle.plans.apply import Done, ProgressLog
from holdfast.processors.lifecycle.plans.explanation import count_of, in_bytes


class TopicChanges(Protocol):
    """Creates, configures and deletes topics."""

    def create(self, spec: TopicSpec) -> bool:
        """Create a topic; False when it already exists."""

    def alter(self, name: str, config: Mapping[str, str]) -> None:
        """Set config entries."""

    def delete(self, name: str) -> None:
        """Delete a topic; a missing one is no error."""


class Runner(Protocol):
    """Starts and stops processors, and waits until they run."""

    def make_release(self, processor: str, stage: stages.MakeRelease) -> Done:
        """Copy and record the code of a version."""

    def run(self, processor: str, stage: stages.RunProcessor, tell: ProgressLog) -> Done:
        """Run every slot with these options; returns once every input partition is processed."""

    def stop(self, processor: str, *, for_good: bool) -> Done:
        """Stop every slot after a last commit; returns when its processes have ended."""

    def adopt(self, processor: str, stage: stages.AdoptDeployment) -> Done:
        """Record a deployment that the registry has lost; no worker is touched."""


class Owners(Protocol):
    """The workers that own a processor's state; no other process changes it."""

    def read_again(self, processor: str, stage: stages.ReadAgain, tell: ProgressLog) -> None:
        """Set the positions of tasks without state."""

    def clear(self, processor: str, stage: stages.ClearKeys, tell: ProgressLog) -> tuple[int, tuple[str, ...]]:
        """Delete the selected keys; returns their number, and the files to which they were exported."""

    def compact(self, processor: str, stage: stages.CompactStores, tell: ProgressLog) -> tuple[int, int]:
        """Rewrite the stores; returns bytes before and after."""


class LocalState(Protocol):
    """The state folders of a stopped processor."""

    def set_aside(self, tasks: tuple[str, ...], name: str) -> int:
        """Rename these tasks' state folders; returns how many were renamed."""

    def delete_aside(self, tasks: tuple[str, ...], name: str) -> int:
        """Delete the renamed folders; returns their number."""


#: Runs a version on the last messages, or raises.
Prove = Callable[[str, stages.ProveVersion, ProgressLog], Done]
#: Rebuilds stores next to their running processors, and cuts over.
Shadows = Callable[[str, stages.ShadowStage, ProgressLog], Done]
#: Writes the content of tables to stores.
FromTables = Callable[[str, stages.TableStage, ProgressLog], Done]
#: Sends dead letters again, and deletes them.
Letters = Callable[[str, stages.LetterStage, ProgressLog], Done]
#: Archives and deletes orphans, and puts topics back.
Orphans = Callable[[stages.OrphanStage], Done]


class Transactions(Protocol):
    """Transactions of other programs."""

    def abort_hanging(self, stage: stages.AbortTransaction) -> bool:
        """Abort the transaction; False when it is no longer open."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Carries stages out (``apply.Executor``)."""

    topics: TopicChanges
    runner: Runner
    owners: Owners
    #: Processor -> its state folders.
    local: Callable[[str], LocalState]
    #: Processor, stores: raises unless the local state of a stopped processor is whole.
    check_local: Callable[[str, tuple[str, ...]], None]
    prove: Prove
    shadows: Shadows
    transactions: Transactions
    tables: FromTables
    letters: Letters
    orphans: Callable[[], Orphans]  # opened only for its own stages, because it loads the catalog's library

    def __call__(self, processor: str, stage: stages.Stage, tell: ProgressLog) -> Done:
        """Carry one stage out: an ``apply.Executor``."""
        if isinstance(stage, stages.ShadowStage):
            return self.shadows(processor, stage, tell)
        if isinstance(stage, stages.TableStage):
            return self.tables(processor, stage, tell)
        if isinstance(stage, stages.LetterStage):
            return self.letters(processor, stage, tell)
        if isinstance(stage, stages.OrphanStage):
            return self.orphans()(stage)
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
                return Done(f"{count_of(keys, 'key')} deleted{set_to}{written_to(paths)}", keys)
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
    """The files to which entries were exported before they were changed, as the end of a sentence."""
    return f"; written before to {', '.join(paths)}" if paths else ""


def offsets_text(offsets: Mapping[str, Mapping[int, int]], shown: int = 6) -> str:
    """Offsets in words: ``topic[0]=5, topic[1]=7 and 3 more``."""
    texts = [
        f"{topic}[{number}]={at}" for topic, parts in sorted(offsets.items()) for number, at in sorted(parts.items())
    ]
    rest = "" if len(texts) <= shown else f" and {len(texts) - shown} more"
    return ", ".join(texts[:shown]) + rest
