"""The stages that plans are made of: frozen, plain data; ``says`` is the sentence that ``explain`` prints.

Invariants:
    - A stage holds all parameters of its work; ``execution.Execution`` holds the ports that it acts through.
    - Carrying a stage out twice does no harm: a resumed apply repeats the stage that was not recorded as done.
    - ``Stage`` is the closed union of all stages.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from holdfast.processors.lifecycle.plans.requests import Selection


class CreateTopic(msgspec.Struct, frozen=True, tag="create_topic"):
    """Create a missing topic; ``replication`` None uses the cluster's default."""

    says: str
    name: str
    partitions: int | None
    replication: int | None
    config: dict[str, str]
    destructive: ClassVar[bool] = False


class SetTopicConfig(msgspec.Struct, frozen=True, tag="set_topic_config"):
    """Set entries of a topic's configuration."""

    says: str
    name: str
    config: dict[str, str]
    destructive: ClassVar[bool] = False


class DeleteTopic(msgspec.Struct, frozen=True, tag="delete_topic"):
    """Delete a changelog whose state is given up or replaced."""

    says: str
    name: str
    destructive: ClassVar[bool] = True


class MakeRelease(msgspec.Struct, frozen=True, tag="make_release"):
    """Copy and record the code of a version, so that a rollback can start it although the files changed."""

    says: str
    release_id: str
    code_version: str
    destructive: ClassVar[bool] = False


class RunProcessor(msgspec.Struct, frozen=True, tag="run_processor"):
    """Run every slot of a processor, and wait until every input partition is processed.

    Args:
        says: The sentence.
        code_version: The version that has to run.
        timeout_s: Timeout, seconds.
        paused: Whether the workers read no input.
        restore_from: Source of missing state: ``newest`` checkpoint and tail, or the whole ``changelog``.
        reseed: Stores whose changelog is written from local state.
        begin_empty: New stores, which begin empty at the committed input offsets.
        release_id: The release to run; None for the release of the deployed version.
        back_to: The release to start again when this one fails to start working; None for no rollback.
        settle_s: How long it is watched once it runs, unless it commits input of every partition sooner, seconds.
    """

    says: str
    code_version: str
    timeout_s: float = 120.0
    paused: bool = False
    restore_from: str = "newest"
    reseed: tuple[str, ...] = ()
    begin_empty: tuple[str, ...] = ()
    release_id: str | None = None
    back_to: str | None = None
    settle_s: float = 0.0
    destructive: ClassVar[bool] = False


class StopProcessor(msgspec.Struct, frozen=True, tag="stop_processor"):
    """Stop every slot after a last commit; ``for_good`` records that the processor is meant to be stopped."""

    says: str
    for_good: bool
    destructive: ClassVar[bool] = False


class AbortTransaction(msgspec.Struct, frozen=True, tag="abort_transaction"):
    """Abort a hanging transaction, which no coordinator knows, by writing its abort marker."""

    says: str
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    destructive: ClassVar[bool] = False


class CompactStores(msgspec.Struct, frozen=True, tag="compact_stores"):
    """The owners rewrite their local stores without overwritten and deleted entries."""

    says: str
    destructive: ClassVar[bool] = False


class ExportKeys(msgspec.Struct, frozen=True, tag="export_keys"):
    """The owners write the selected keys of stores to files."""

    says: str
    stores: tuple[str, ...]
    selection: Selection
    partitions: tuple[int, ...]
    destructive: ClassVar[bool] = False


class ClearKeys(msgspec.Struct, frozen=True, tag="clear_keys"):
    """The owners delete the selected keys of stores, in committed transactions.

    Args:
        says: The sentence.
        stores: The stores.
        selection: The keys.
        partitions: The partitions; empty for all.
        positions: Input topic -> partition -> input offset to set in the same commit as the last deletes; empty to
            leave the offsets unchanged.
    """

    says: str
    stores: tuple[str, ...]
    selection: Selection
    partitions: tuple[int, ...]
    positions: dict[str, dict[int, int]] = {}
    destructive: ClassVar[bool] = True


class SetStateAside(msgspec.Struct, frozen=True, tag="set_state_aside"):
    """Rename the local state folders of tasks, so that their workers restore."""

    says: str
    tasks: tuple[str, ...]
    name: str
    destructive: ClassVar[bool] = False


class DeleteStateAside(msgspec.Struct, frozen=True, tag="delete_state_aside"):
    """Delete the folders that ``SetStateAside`` renamed, after the state was restored."""

    says: str
    tasks: tuple[str, ...]
    name: str
    destructive: ClassVar[bool] = False


class StartShadow(msgspec.Struct, frozen=True, tag="start_shadow"):
    """Start the shadow: the processor's functions in another group, from the first record of a store's inputs."""

    says: str
    store: str
    destructive: ClassVar[bool] = False


class WaitForShadow(msgspec.Struct, frozen=True, tag="wait_for_shadow"):
    """Wait until the shadow has read almost as far as the processor has committed."""

    says: str
    store: str
    destructive: ClassVar[bool] = False


class PauseProcessor(msgspec.Struct, frozen=True, tag="pause_processor"):
    """All workers commit, and read no input until they are resumed."""

    says: str
    destructive: ClassVar[bool] = False


class FinishShadow(msgspec.Struct, frozen=True, tag="finish_shadow"):
    """The shadow reads exactly up to the offsets that the paused processor has committed, and stops."""

    says: str
    store: str
    destructive: ClassVar[bool] = False


class AdoptStore(msgspec.Struct, frozen=True, tag="adopt_store"):
    """The owners make their store equal to the shadow's, in committed transactions; input offsets stay."""

    says: str
    store: str
    destructive: ClassVar[bool] = True


class ResumeProcessor(msgspec.Struct, frozen=True, tag="resume_processor"):
    """All workers read their inputs again."""

    says: str
    destructive: ClassVar[bool] = False


class RemoveShadow(msgspec.Struct, frozen=True, tag="remove_shadow"):
    """Remove the shadow's program, topics, offsets and local state."""

    says: str
    store: str
    destructive: ClassVar[bool] = False


class CheckTable(msgspec.Struct, frozen=True, tag="check_table"):
    """Read a whole snapshot of a store and compare it with its manifest, before anything is changed.

    Args:
        says: The sentence.
        store: The store.
        table: Its table.
        version: The table's version.
        fingerprints: Changelog partition -> the manifest's fingerprint.
    """

    says: str
    store: str
    table: str
    version: int
    fingerprints: dict[int, str]
    destructive: ClassVar[bool] = False


class LoadChangelog(msgspec.Struct, frozen=True, tag="load_changelog"):
    """Write a snapshot of a store to its new changelog; no worker can start on it before ``SetPositions``.

    Args:
        says: The sentence.
        store: The store.
        table: Its table.
        version: The table's version.
        fingerprints: Changelog partition -> the manifest's fingerprint.
    """

    says: str
    store: str
    table: str
    version: int
    fingerprints: dict[int, str]
    destructive: ClassVar[bool] = False


class SetPositions(msgspec.Struct, frozen=True, tag="set_positions"):
    """Set the input offsets, in one transaction with the records that complete loaded changelogs.

    Args:
        says: The sentence.
        stores: The loaded stores.
        positions: Input topic -> partition -> offset; empty for the offsets that the group has committed.
    """

    says: str
    stores: tuple[str, ...]
    positions: dict[str, dict[int, int]]
    destructive: ClassVar[bool] = True


class CompareStores(msgspec.Struct, frozen=True, tag="compare_stores"):
    """Compare the state of paused owners with ``fingerprints``: store -> partition -> fingerprint."""

    says: str
    fingerprints: dict[str, dict[int, str]]
    destructive: ClassVar[bool] = False


class LoadTable(msgspec.Struct, frozen=True, tag="load_table"):
    """Write the rows of a table to a temporary topic in the format of a store's changelog.

    Args:
        says: The sentence.
        store: The store.
        table: The table.
        version: The table's version.
        key: The column with the message keys.
        columns: The columns of the value.
        partitioner: The partitioner of the store's source topics.
        event_ms: The event time of all entries, ms since 1970: when the table's version was written.
    """

    says: str
    store: str
    table: str
    version: int
    key: str
    columns: tuple[str, ...]
    partitioner: str
    event_ms: int
    destructive: ClassVar[bool] = False


class AdoptTable(msgspec.Struct, frozen=True, tag="adopt_table"):
    """The paused owners make their store equal to the loaded topic, in committed transactions; input offsets stay."""

    says: str
    store: str
    destructive: ClassVar[bool] = True


class RemoveLoaded(msgspec.Struct, frozen=True, tag="remove_loaded"):
    """Remove the topic that a table was loaded to."""

    says: str
    store: str
    destructive: ClassVar[bool] = False


ShadowStage = StartShadow | WaitForShadow | PauseProcessor | FinishShadow | AdoptStore | ResumeProcessor | RemoveShadow
TableStage = CheckTable | LoadChangelog | SetPositions | CompareStores | LoadTable | AdoptTable | RemoveLoaded

Stage = (
    CreateTopic
    | SetTopicConfig
    | DeleteTopic
    | MakeRelease
    | RunProcessor
    | StopProcessor
    | AbortTransaction
    | CompactStores
    | ExportKeys
    | ClearKeys
    | SetStateAside
    | DeleteStateAside
    | ShadowStage
    | TableStage
)
