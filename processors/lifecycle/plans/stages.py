"""The stages of plans: immutable data classes that describe one step of a change, with a sentence for users (``says``).

Invariants:
    - A stage has all parameters of its work. ``execution.Execution`` carries the stage out through ports (interfaces).
    - A stage can be carried out twice without harm, because a resumed apply (execution of a plan) repeats the stage
      that was not recorded as done.
    - ``Stage`` is the closed union of all stages.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from holdfast.processors.lifecycle.plans.facts.orphans import Kind
from holdfast.processors.lifecycle.plans.requests import Selection


class _Stage(msgspec.Struct, frozen=True):
    says: str
    #: Whether the stage deletes data.
    destructive: ClassVar[bool] = False

    @property
    def exports_first(self) -> bool:
        """Whether the stage writes the data to a file before it deletes the data."""
        return False


class CreateTopic(_Stage, frozen=True, tag="create_topic"):
    """Create a missing topic; ``replication`` None means the cluster's default."""

    name: str
    partitions: int | None
    replication: int | None
    config: dict[str, str]


class SetTopicConfig(_Stage, frozen=True, tag="set_topic_config"):
    """Set configuration entries of a topic."""

    name: str
    config: dict[str, str]


class DeleteTopic(_Stage, frozen=True, tag="delete_topic"):
    """Delete a changelog, because its state is no longer needed or will be written to a new changelog."""

    name: str
    destructive: ClassVar[bool] = True


class MakeRelease(_Stage, frozen=True, tag="make_release"):
    """Copy and record the code of a version, so that a later rollback can start it even if the files changed."""

    release_id: str
    code_version: str


class ProveVersion(_Stage, frozen=True, tag="prove_version"):
    """Run a new version on the last committed messages, as a test in a separate process; nothing is written.

    Args:
        code_version: The version to test.
        release_id: The release of that version; None for the deployed release.
        former: The release of the running version, which processes the same messages for comparison; None if it cannot
            be started.
        former_version: The running version, which the new version replaces.
        inputs: The input topics whose last messages are used.
        messages: Number of last messages of each topic.
    """

    code_version: str
    release_id: str | None
    former: str | None
    former_version: str
    inputs: tuple[str, ...]
    messages: int = 100


class RunProcessor(_Stage, frozen=True, tag="run_processor"):
    """Start the worker in every slot (place of one worker), and wait until every input partition is processed.

    Args:
        code_version: The version that has to run.
        timeout_s: Maximum seconds to wait.
        paused: Whether the workers start paused, which means that they read no input.
        restore_from: Source of missing state: ``newest`` (the newest checkpoint and the changelog's tail) or
            ``changelog`` (the whole changelog).
        reseed: Stores whose changelog is written from local state.
        begin_empty: New stores, which begin empty although input offsets are already committed.
        release_id: The release to run; None for the release of the deployed version.
        earlier: Whether the stage goes back to an earlier release. That release is not recorded as the newest, so that
            the next rollback does not return to the faulty version.
        back_to: The release to start again if this release fails to start; None for no rollback.
        back_slots: The slots to start if this release fails; empty for the slots of the recorded deployment.
        fresh_settings: Whether the release runs with the present settings, which are then recorded. Otherwise it runs
            with the settings of its deployment.
        settle_s: Maximum seconds to watch the running release. The watch ends earlier when every partition has
            committed input or has no lag.
        together: Whether all workers of other versions stop before the first worker of this version starts. Otherwise
            workers are replaced slot by slot.
        slots: The slots that must run; all other slots are removed. Empty for the slots of the recorded deployment.
        rescale: Whether only the number of slots changes; workers of this version are then not restarted.
        warm_s: Maximum seconds that workers may fetch the state of their new tasks before the group rebalances; 0 for
            no wait.
    """

    code_version: str
    timeout_s: float = 120.0
    paused: bool = False
    restore_from: str = "newest"
    reseed: tuple[str, ...] = ()
    begin_empty: tuple[str, ...] = ()
    release_id: str | None = None
    back_to: str | None = None
    settle_s: float = 0.0
    together: bool = False
    slots: tuple[str, ...] = ()
    rescale: bool = False
    warm_s: float = 0.0
    earlier: bool = False
    back_slots: tuple[str, ...] = ()
    fresh_settings: bool = False


class StopProcessor(_Stage, frozen=True, tag="stop_processor"):
    """Stop the worker in every slot after a final commit; ``for_good`` records "stopped" as the desired state.

    A slot is the place of one worker.
    """

    for_good: bool


class AdoptDeployment(_Stage, frozen=True, tag="adopt_deployment"):
    """Record a deployment in Holdfast's registry with a generation (number) above ``after``; no worker is restarted.

    ``release`` has the columns of the deployment's release, copied from its mark (a file with a copy of the registry's
    row). It is None without a release.
    """

    code_version: str
    slots: tuple[str, ...]
    desired: Literal["deployed", "stopped"]
    after: int
    release: dict[str, Any] | None = None


class AbortTransaction(_Stage, frozen=True, tag="abort_transaction"):
    """Abort a hanging transaction, which no coordinator knows, by writing an abort marker."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int


class CompactStores(_Stage, frozen=True, tag="compact_stores"):
    """Let workers rewrite local stores without overwritten and deleted entries; empty ``slots`` means all slots.

    A slot is the place of one worker.
    """

    slots: tuple[str, ...] = ()


class ClearKeys(_Stage, frozen=True, tag="clear_keys"):
    """Let the owners (workers) delete the selected keys of stores in committed transactions.

    Empty ``partitions`` means all partitions. With ``export``, the owners first write the entries to files. No input is
    processed between export and deletion. ``positions`` (input topic -> partition -> offset) are input offsets to set
    in the same commit as the last deletes; empty for unchanged offsets.
    """

    stores: tuple[str, ...]
    selection: Selection
    partitions: tuple[int, ...]
    positions: dict[str, dict[int, int]] = {}
    export: bool = False
    #: Whether the entries of the export files can be put back after the deletion.
    can_be_undone: ClassVar[bool] = True
    destructive: ClassVar[bool] = True

    @property
    def exports_first(self) -> bool:
        """Whether the stage writes the data to a file before it deletes the data."""
        return self.export


class ClearGroups(ClearKeys, frozen=True, tag="clear_groups"):
    """Let the owners (workers) delete all entries of a ``group_by`` of a table; an export can't be put back later."""

    can_be_undone: ClassVar[bool] = False


class ReadAgain(_Stage, frozen=True, tag="read_again"):
    """Set input offsets (topic -> partition -> offset) of paused tasks without state, so that they read input again."""

    positions: dict[str, dict[int, int]]


class CheckLocalState(_Stage, frozen=True, tag="check_local_state"):
    """Check that local state contains exactly the committed input. It is the only copy once changelogs are recreated.

    ``stores`` are the stores whose changelogs the next stages delete and create again.
    """

    stores: tuple[str, ...]


class SetStateAside(_Stage, frozen=True, tag="set_state_aside"):
    """Rename the local state folders of tasks, so that workers must restore the state."""

    tasks: tuple[str, ...]
    name: str


class DeleteStateAside(_Stage, frozen=True, tag="delete_state_aside"):
    """Delete the folders that ``SetStateAside`` renamed, after the state was restored."""

    tasks: tuple[str, ...]
    name: str


class StartShadow(_Stage, frozen=True, tag="start_shadow"):
    """Start a shadow: a second run of the processor's functions, in its own group, which reads from the beginning."""

    store: str


class WaitForShadow(_Stage, frozen=True, tag="wait_for_shadow"):
    """Wait until the shadow (second run of the functions) has nearly reached the processor's committed offsets."""

    store: str


class PauseProcessor(_Stage, frozen=True, tag="pause_processor"):
    """Let all workers commit and then read no input until they are resumed."""


class FinishShadow(_Stage, frozen=True, tag="finish_shadow"):
    """Let the shadow (second run of the functions) read exactly up to the paused processor's offsets, then stop it."""

    store: str


class AdoptStore(_Stage, frozen=True, tag="adopt_store"):
    """Let the workers change their store, in transactions, until it equals the shadow's store.

    Input offsets stay unchanged. The shadow is a second run of the functions. Before the first change, the paused
    owners (workers) write the entries selected by ``export`` to files.
    """

    store: str
    export: Selection | None = None
    destructive: ClassVar[bool] = True

    @property
    def exports_first(self) -> bool:
        """Whether the stage writes the data to a file before it deletes the data."""
        return self.export is not None


class ResumeProcessor(_Stage, frozen=True, tag="resume_processor"):
    """Let all paused workers read their inputs again."""


class RemoveShadow(_Stage, frozen=True, tag="remove_shadow"):
    """Remove the program, topics, offsets and local state of the shadow (second run of the processor's functions)."""

    store: str


class _OfSnapshot(_Stage, frozen=True):
    """A snapshot of a store: the version of its table, and the expected fingerprint of each changelog partition."""

    store: str
    table: str
    version: int
    fingerprints: dict[int, str]


class CheckTable(_OfSnapshot, frozen=True, tag="check_table"):
    """Read a store's whole snapshot and compare its rows with its manifest (JSON), before anything is changed."""


class LoadChangelog(_OfSnapshot, frozen=True, tag="load_changelog"):
    """Write a snapshot of a store to the store's new changelog.

    No worker can start with this changelog before the stage ``SetPositions``.
    """


class SetPositions(_Stage, frozen=True, tag="set_positions"):
    """In one transaction, set input offsets, and write the records that complete the loaded changelogs.

    These records contain the input offsets. ``positions`` maps input topic -> partition -> offset; empty keeps the
    committed offsets of the group.
    """

    stores: tuple[str, ...]
    positions: dict[str, dict[int, int]]
    destructive: ClassVar[bool] = True


class CompareStores(_Stage, frozen=True, tag="compare_stores"):
    """Compare the state of paused workers with the expected ``fingerprints`` (store -> partition -> fingerprint)."""

    fingerprints: dict[str, dict[int, str]]


class LoadTable(_Stage, frozen=True, tag="load_table"):
    """Read the rows of a table, and write them to a temporary topic in the format of a store's changelog.

    ``key`` is the column with the message keys. ``partitioner`` is the partitioner that the writers of the store's
    source topics use. ``event_ms`` is the event time of all entries, ms since 1970: the time when the table's version
    was written.
    """

    store: str
    table: str
    version: int
    key: str
    columns: tuple[str, ...]
    partitioner: str
    event_ms: int


class LoadFile(_Stage, frozen=True, tag="load_file"):
    """Read the entries of one store from an export file, and write them to a temporary topic.

    ``sha256`` is the expected hash of the file.
    """

    store: str
    path: str
    sha256: str


class AdoptTable(_Stage, frozen=True, tag="adopt_table"):
    """Let the paused owners (workers) change their store, in transactions, until it equals the loaded topic.

    Input offsets stay unchanged. With ``keep_others``, message keys that are not in the topic stay unchanged. Before
    the first change, the owners write the entries selected by ``export`` to files.
    """

    store: str
    keep_others: bool = False
    export: Selection | None = None
    destructive: ClassVar[bool] = True

    @property
    def exports_first(self) -> bool:
        """Whether the stage writes the data to a file before it deletes the data."""
        return self.export is not None


class RemoveLoaded(_Stage, frozen=True, tag="remove_loaded"):
    """Remove the temporary topic that the rows of a table or the entries of a file were written to."""

    store: str


class SendAgain(_Stage, frozen=True, tag="send_again"):
    """Send the messages of the dead letters before offsets ``ends`` to the ``inputs`` that they came from."""

    topic: str
    ends: dict[int, int]
    inputs: tuple[str, ...]


class RemoveLetters(_Stage, frozen=True, tag="remove_letters"):
    """Delete the dead letters before the offsets ``ends``; their messages were sent again."""

    topic: str
    ends: dict[int, int]
    destructive: ClassVar[bool] = True


class ArchiveOrphan(_Stage, frozen=True, tag="archive_orphan"):
    """Copy an orphan (resource without an owner) into the archive if its present facts equal ``facts``."""

    kind: Kind
    name: str
    facts: dict[str, Any]


class DeleteOrphan(_Stage, frozen=True, tag="delete_orphan"):
    """Delete an orphan (resource without an owner) if it is unchanged since its archived copy ``archive``.

    If its deletion was interrupted, finish the deletion. ``by_name`` is true if the user gave the topic's full name.
    This is required for a topic whose records name no processor.
    """

    kind: Kind
    name: str
    archive: str
    by_name: bool = False
    destructive: ClassVar[bool] = True


class PutTopicBack(_Stage, frozen=True, tag="put_topic_back"):
    """Create a topic again, with all records, from its archived copy ``archive``."""

    topic: str
    archive: str


#: The kinds of copies of a key, in the order in which an erasure removes them.
CopyKind = Literal["state", "changelog", "files", "checkpoints", "table", "letters", "exports", "archives", "registry"]


class NoteErasure(_Stage, frozen=True, tag="note_erasure"):
    """Record in Holdfast's registry that a key is being erased, so that no later restore brings the key back."""

    key: str


class EraseCopy(_Stage, frozen=True, tag="erase_copy"):
    """Remove the copies of a key in one place, and read the place again to prove that the copies are gone.

    ``name`` is the store, topic or folder. ``stores`` are the stores whose entries the place has.
    """

    kind: CopyKind
    name: str
    key: str
    stores: tuple[str, ...] = ()
    destructive: ClassVar[bool] = True


class Certify(_Stage, frozen=True, tag="certify"):
    """Complete the certificate of an erasure.

    Args:
        stays: Maps each topic whose messages stay to a remark, or "".
        sinks: Maps each sink of the processor to the place of its system, or "". What it has stored there stays.
    """

    stays: dict[str, str] = {}
    sinks: dict[str, str] = {}


ShadowStage = StartShadow | WaitForShadow | PauseProcessor | FinishShadow | AdoptStore | ResumeProcessor | RemoveShadow
TableStage = (
    CheckTable | LoadChangelog | SetPositions | CompareStores | LoadTable | LoadFile | AdoptTable | RemoveLoaded
)
LetterStage = SendAgain | RemoveLetters
OrphanStage = ArchiveOrphan | DeleteOrphan | PutTopicBack
EraseStage = NoteErasure | EraseCopy | Certify

Stage = (
    CreateTopic
    | SetTopicConfig
    | DeleteTopic
    | MakeRelease
    | ProveVersion
    | RunProcessor
    | StopProcessor
    | AdoptDeployment
    | AbortTransaction
    | CompactStores
    | ClearKeys
    | ClearGroups
    | ReadAgain
    | CheckLocalState
    | SetStateAside
    | DeleteStateAside
    | ShadowStage
    | TableStage
    | LetterStage
    | OrphanStage
    | EraseStage
)
