"""The stages of plans: frozen, plain data; ``says`` is the sentence that ``explain`` prints.

Invariants:
    - A stage holds all parameters of its work; ``execution.Execution`` holds the ports that it acts through.
    - Carrying a stage out twice does no harm: a resumed apply repeats the stage that was not recorded as done.
    - ``Stage`` is the closed union of all stages.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from holdfast.processors.lifecycle.plans.orphan_facts import Kind
from holdfast.processors.lifecycle.plans.requests import Selection


class _Stage(msgspec.Struct, frozen=True):
    says: str
    #: Whether the stage deletes data permanently.
    destructive: ClassVar[bool] = False


class CreateTopic(_Stage, frozen=True, tag="create_topic"):
    """Create a missing topic; ``replication`` None uses the cluster's default."""

    name: str
    partitions: int | None
    replication: int | None
    config: dict[str, str]


class SetTopicConfig(_Stage, frozen=True, tag="set_topic_config"):
    """Set entries of a topic's configuration."""

    name: str
    config: dict[str, str]


class DeleteTopic(_Stage, frozen=True, tag="delete_topic"):
    """Delete a changelog whose state is given up or replaced."""

    name: str
    destructive: ClassVar[bool] = True


class MakeRelease(_Stage, frozen=True, tag="make_release"):
    """Copy and record the code of a version, so that a rollback can start it even if the files changed."""

    release_id: str
    code_version: str


class ProveVersion(_Stage, frozen=True, tag="prove_version"):
    """Run a version on the last committed messages, in a separate process; nothing is written.

    Args:
        code_version: The version that is proven.
        release_id: Its release; None for the deployed one.
        former: The release of the running version, which also processes the failed messages; None if it can't be
            started.
        former_version: The version that it replaces.
        inputs: The topics whose messages are read.
        messages: Number of messages of each topic.
    """

    code_version: str
    release_id: str | None
    former: str | None
    former_version: str
    inputs: tuple[str, ...]
    messages: int = 100


class RunProcessor(_Stage, frozen=True, tag="run_processor"):
    """Run every slot of a processor, and wait until every input partition is processed.

    Args:
        code_version: The version that has to run.
        timeout_s: Timeout, seconds.
        paused: Whether the workers read no input.
        restore_from: Source of missing state: ``newest`` checkpoint and tail, or the whole ``changelog``.
        reseed: Stores whose changelog is written from local state.
        begin_empty: New stores, which begin empty at the committed input offsets.
        release_id: The release to run; None for the release of the deployed version.
        earlier: Whether the stage returns to that release: its order among the versions stays, so a rollback never
            returns.
        back_to: The release to start again when this one fails to start; None for no rollback.
        back_slots: The slots to go back to when it fails to start working; empty for those of the recorded deployment.
        fresh_settings: Whether the release runs with the present settings, which are recorded; otherwise with those of
            its deployment.
        settle_s: How long the release is watched once it runs, unless it commits input of every partition earlier,
            seconds.
        together: Whether all workers of another version stop before the first of this version starts. Otherwise slot by
            slot.
        slots: The slots that must run; each other slot is removed. Empty for the slots of the recorded deployment.
        rescale: Whether only the slots change: workers with this version stay unchanged.
        warm_s: How long workers that a rescale gives tasks may fetch their state before the group changes, seconds; 0
            changes it at once.
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
    """Stop every slot after a last commit; ``for_good`` records "stopped" as the desired state."""

    for_good: bool


class AdoptDeployment(_Stage, frozen=True, tag="adopt_deployment"):
    """Record a deployment in the registry, with a generation greater than ``after``; no worker is touched.

    ``release`` has the columns of the deployment's release, as in its mark; None without a release.
    """

    code_version: str
    slots: tuple[str, ...]
    desired: Literal["deployed", "stopped"]
    after: int
    release: dict[str, Any] | None = None


class AbortTransaction(_Stage, frozen=True, tag="abort_transaction"):
    """Abort a hanging transaction, which no coordinator knows, by writing its abort marker."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int


class CompactStores(_Stage, frozen=True, tag="compact_stores"):
    """The owners rewrite their local stores without overwritten and deleted entries; no ``slots`` are all."""

    slots: tuple[str, ...] = ()


class ClearKeys(_Stage, frozen=True, tag="clear_keys"):
    """The owners delete the selected keys of stores, in committed transactions; no ``partitions`` are all.

    With ``export``, the owners write the keys to files in the same command: no input is processed between file and
    deletes. ``positions`` is input topic -> partition -> input offset to set in the same commit as the last deletes;
    empty to leave the offsets unchanged.
    """

    stores: tuple[str, ...]
    selection: Selection
    partitions: tuple[int, ...]
    positions: dict[str, dict[int, int]] = {}
    export: bool = False
    destructive: ClassVar[bool] = True


class ReadAgain(_Stage, frozen=True, tag="read_again"):
    """Paused owners of tasks without state read their inputs from other offsets: topic -> partition -> offset."""

    positions: dict[str, dict[int, int]]


class CheckLocalState(_Stage, frozen=True, tag="check_local_state"):
    """Check that local state holds exactly the committed input, before changelogs of ``stores`` are created again."""

    stores: tuple[str, ...]


class SetStateAside(_Stage, frozen=True, tag="set_state_aside"):
    """Rename the local state folders of tasks, so that their workers restore."""

    tasks: tuple[str, ...]
    name: str


class DeleteStateAside(_Stage, frozen=True, tag="delete_state_aside"):
    """Delete the folders that ``SetStateAside`` renamed, after the state was restored."""

    tasks: tuple[str, ...]
    name: str


class StartShadow(_Stage, frozen=True, tag="start_shadow"):
    """Start the shadow: the processor's functions in another group, from the first record of a store's inputs."""

    store: str


class WaitForShadow(_Stage, frozen=True, tag="wait_for_shadow"):
    """Wait until the shadow has read almost as far as the processor has committed."""

    store: str


class PauseProcessor(_Stage, frozen=True, tag="pause_processor"):
    """All workers commit, and read no input until they are resumed."""


class FinishShadow(_Stage, frozen=True, tag="finish_shadow"):
    """The shadow reads exactly up to the offsets that the paused processor has committed, and stops."""

    store: str


class AdoptStore(_Stage, frozen=True, tag="adopt_store"):
    """The owners make their store equal to the shadow's, in committed transactions; input offsets stay unchanged.

    The paused owners write the present entries of ``export`` to files before the first change.
    """

    store: str
    export: Selection | None = None
    destructive: ClassVar[bool] = True


class ResumeProcessor(_Stage, frozen=True, tag="resume_processor"):
    """All workers read their inputs again."""


class RemoveShadow(_Stage, frozen=True, tag="remove_shadow"):
    """Remove the shadow's program, topics, offsets and local state."""

    store: str


class _OfSnapshot(_Stage, frozen=True):
    """A snapshot of a store: a version of its table, and the manifest's fingerprint of each changelog partition."""

    store: str
    table: str
    version: int
    fingerprints: dict[int, str]


class CheckTable(_OfSnapshot, frozen=True, tag="check_table"):
    """Read a whole snapshot of a store and compare it with its manifest, before anything is changed."""


class LoadChangelog(_OfSnapshot, frozen=True, tag="load_changelog"):
    """Write a snapshot of a store to its new changelog; no worker can start on it before ``SetPositions``."""


class SetPositions(_Stage, frozen=True, tag="set_positions"):
    """Set the input offsets, in one transaction with the records that complete the loaded changelogs of ``stores``.

    ``positions`` is input topic -> partition -> offset; empty for the offsets that the group has committed.
    """

    stores: tuple[str, ...]
    positions: dict[str, dict[int, int]]
    destructive: ClassVar[bool] = True


class CompareStores(_Stage, frozen=True, tag="compare_stores"):
    """Compare the state of paused owners with ``fingerprints``: store -> partition -> fingerprint."""

    fingerprints: dict[str, dict[int, str]]


class LoadTable(_Stage, frozen=True, tag="load_table"):
    """Write the rows of a table to a temporary topic in the format of a store's changelog.

    ``key`` is the column with the message keys, ``partitioner`` that of the store's source topics, and ``event_ms`` the
    event time of all entries, ms since 1970: when the table's version was written.
    """

    store: str
    table: str
    version: int
    key: str
    columns: tuple[str, ...]
    partitioner: str
    event_ms: int


class LoadFile(_Stage, frozen=True, tag="load_file"):
    """Write the entries of a store in an export file, whose hash is ``sha256``, to a temporary topic."""

    store: str
    path: str
    sha256: str


class AdoptTable(_Stage, frozen=True, tag="adopt_table"):
    """The paused owners make their store equal to the loaded topic, in committed transactions; input offsets stay.

    With ``keep_others``, only the message keys of the topic are changed. The owners write the present entries of
    ``export`` to files before the first change.
    """

    store: str
    keep_others: bool = False
    export: Selection | None = None
    destructive: ClassVar[bool] = True


class RemoveLoaded(_Stage, frozen=True, tag="remove_loaded"):
    """Remove the topic that a table was loaded to."""

    store: str


class SendAgain(_Stage, frozen=True, tag="send_again"):
    """Send the messages of dead letters up to ``ends`` to the ``inputs`` that they came from."""

    topic: str
    ends: dict[int, int]
    inputs: tuple[str, ...]


class RemoveLetters(_Stage, frozen=True, tag="remove_letters"):
    """Delete the dead letters up to ``ends``, which were sent again."""

    topic: str
    ends: dict[int, int]
    destructive: ClassVar[bool] = True


class ArchiveOrphan(_Stage, frozen=True, tag="archive_orphan"):
    """Copy an orphan into the archive, if its facts are still ``facts``."""

    kind: Kind
    name: str
    facts: dict[str, Any]


class DeleteOrphan(_Stage, frozen=True, tag="delete_orphan"):
    """Delete an orphan that is equal to its copy ``archive``, or finish its interrupted deletion.

    ``by_name``: a person named this topic in full, because its records name no processor.
    """

    kind: Kind
    name: str
    archive: str
    by_name: bool = False
    destructive: ClassVar[bool] = True


class PutTopicBack(_Stage, frozen=True, tag="put_topic_back"):
    """Create a topic again from its copy ``archive``, with all records."""

    topic: str
    archive: str


ShadowStage = StartShadow | WaitForShadow | PauseProcessor | FinishShadow | AdoptStore | ResumeProcessor | RemoveShadow
TableStage = (
    CheckTable | LoadChangelog | SetPositions | CompareStores | LoadTable | LoadFile | AdoptTable | RemoveLoaded
)
LetterStage = SendAgain | RemoveLetters
OrphanStage = ArchiveOrphan | DeleteOrphan | PutTopicBack

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
    | ReadAgain
    | CheckLocalState
    | SetStateAside
    | DeleteStateAside
    | ShadowStage
    | TableStage
    | LetterStage
    | OrphanStage
)
