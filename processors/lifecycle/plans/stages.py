"""The stages that plans are made of: frozen, plain data, each with the sentence that says what it does.

Invariants:
    - A stage holds everything that carrying it out needs to decide on; what it acts through is given to it.
    - Carrying a stage out twice does no harm: an apply that was killed begins again with the stage it was at.
    - ``Stage`` is the closed union of all of them; ``execution`` knows how to carry each out.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from holdfast.processors.lifecycle.plans.requests import Selection


class CreateTopic(msgspec.Struct, frozen=True, tag="create_topic"):
    """Create a topic that is missing; ``replication`` None leaves it to the cluster."""

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
    """Delete a topic, whose state was given up."""

    says: str
    name: str
    destructive: ClassVar[bool] = True


class MakeRelease(msgspec.Struct, frozen=True, tag="make_release"):
    """Keep the code of a version, so that it can be started again whatever becomes of the files."""

    says: str
    release_id: str
    code_version: str
    destructive: ClassVar[bool] = False


class RunProcessor(msgspec.Struct, frozen=True, tag="run_processor"):
    """Have every slot of a processor run, and wait until each input partition is worked on.

    Args:
        says: The sentence.
        code_version: The version that has to run.
        timeout_s: How long that may take, seconds.
        paused: Whether it reads no input.
        restore_from: Where state comes from that is not there: ``newest`` checkpoint and tail, or ``changelog``.
        reseed: Stores whose changelog is written anew from local state.
        begin_empty: Stores that are new, and begin empty at the committed input offsets.
        release_id: The release that runs; None for the one of the version that is deployed.
        back_to: The release that is started again when this one does not come to work; None for none.
        settle_s: For so long it is watched once it works, unless it has committed input sooner, seconds.
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
    """Stop every slot gently; ``for_good`` records that it is meant to be down."""

    says: str
    for_good: bool
    destructive: ClassVar[bool] = False


class AbortTransaction(msgspec.Struct, frozen=True, tag="abort_transaction"):
    """Write the mark that ends a transaction which hangs: no coordinator knows it any more."""

    says: str
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    destructive: ClassVar[bool] = False


class CompactStores(msgspec.Struct, frozen=True, tag="compact_stores"):
    """Have the owners rewrite their stores."""

    says: str
    destructive: ClassVar[bool] = False


class ExportKeys(msgspec.Struct, frozen=True, tag="export_keys"):
    """Have the owners write the selected keys of stores to files."""

    says: str
    stores: tuple[str, ...]
    selection: Selection
    partitions: tuple[int, ...]
    destructive: ClassVar[bool] = False


class ClearKeys(msgspec.Struct, frozen=True, tag="clear_keys"):
    """Have the owners delete the selected keys of stores, in committed transactions.

    Args:
        says: The sentence.
        stores: The stores.
        selection: Which keys.
        partitions: Only there; empty for everywhere.
        positions: Input topic -> partition -> the offset that input is read from afterwards, as of the same commit as
            the last deletes; empty to leave it where it stands.
    """

    says: str
    stores: tuple[str, ...]
    selection: Selection
    partitions: tuple[int, ...]
    positions: dict[str, dict[int, int]] = {}
    destructive: ClassVar[bool] = True


class SetStateAside(msgspec.Struct, frozen=True, tag="set_state_aside"):
    """Move the local state of tasks out of the way, under a name of its own."""

    says: str
    tasks: tuple[str, ...]
    name: str
    destructive: ClassVar[bool] = False


class DeleteStateAside(msgspec.Struct, frozen=True, tag="delete_state_aside"):
    """Delete what ``SetStateAside`` moved, which was restored meanwhile."""

    says: str
    tasks: tuple[str, ...]
    name: str
    destructive: ClassVar[bool] = False


class StartShadow(msgspec.Struct, frozen=True, tag="start_shadow"):
    """Have the processor's functions run once more beside it, from the beginning of a store's inputs."""

    says: str
    store: str
    destructive: ClassVar[bool] = False


class WaitForShadow(msgspec.Struct, frozen=True, tag="wait_for_shadow"):
    """Wait until the shadow lacks a tail only of what the processor has committed."""

    says: str
    store: str
    destructive: ClassVar[bool] = False


class PauseProcessor(msgspec.Struct, frozen=True, tag="pause_processor"):
    """Have all workers commit, and read nothing until they are resumed."""

    says: str
    destructive: ClassVar[bool] = False


class FinishShadow(msgspec.Struct, frozen=True, tag="finish_shadow"):
    """Have the shadow read up to the offsets that the paused processor has committed, and stop it."""

    says: str
    store: str
    destructive: ClassVar[bool] = False


class AdoptStore(msgspec.Struct, frozen=True, tag="adopt_store"):
    """Have the owners make their store equal to the shadow's, in committed transactions; positions stay."""

    says: str
    store: str
    destructive: ClassVar[bool] = True


class ResumeProcessor(msgspec.Struct, frozen=True, tag="resume_processor"):
    """Have all workers read their inputs again."""

    says: str
    destructive: ClassVar[bool] = False


class RemoveShadow(msgspec.Struct, frozen=True, tag="remove_shadow"):
    """Remove the shadow's program, topics, offsets and local state."""

    says: str
    store: str
    destructive: ClassVar[bool] = False


class CheckTable(msgspec.Struct, frozen=True, tag="check_table"):
    """Read a snapshot of a store whole, and compare it with its manifest, before anything is changed.

    Args:
        says: The sentence.
        store: The store.
        table: Its table.
        version: The table's version.
        fingerprints: By changelog partition, what the manifest says.
    """

    says: str
    store: str
    table: str
    version: int
    fingerprints: dict[int, str]
    destructive: ClassVar[bool] = False


class LoadChangelog(msgspec.Struct, frozen=True, tag="load_changelog"):
    """Write a snapshot of a store to its changelog, which is new; nobody can start on it before ``SetPositions``.

    Args:
        says: The sentence.
        store: The store.
        table: Its table.
        version: The table's version.
        fingerprints: By changelog partition, what the manifest says.
    """

    says: str
    store: str
    table: str
    version: int
    fingerprints: dict[int, str]
    destructive: ClassVar[bool] = False


class SetPositions(msgspec.Struct, frozen=True, tag="set_positions"):
    """Set where input is read on from, in one transaction with the records that make loaded changelogs whole.

    Args:
        says: The sentence.
        stores: The stores that were loaded.
        positions: Input topic -> partition -> offset; empty for what the group has committed.
    """

    says: str
    stores: tuple[str, ...]
    positions: dict[str, dict[int, int]]
    destructive: ClassVar[bool] = True


class CompareStores(msgspec.Struct, frozen=True, tag="compare_stores"):
    """Have the paused owners say what they hold, and compare it: ``fingerprints`` by store and partition."""

    says: str
    fingerprints: dict[str, dict[int, str]]
    destructive: ClassVar[bool] = False


class LoadTable(msgspec.Struct, frozen=True, tag="load_table"):
    """Write the rows of a table to a topic that is shaped like a store's changelog, beside it.

    Args:
        says: The sentence.
        store: The store.
        table: The table.
        version: The table's version.
        key: The column with the message keys.
        columns: The columns that become the value.
        partitioner: How the store's source topics spread keys over partitions.
        event_ms: The event time that entries get, ms since 1970: when the table's version was written.
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
    """Have the paused owners make their store equal to what was loaded, in committed transactions; positions stay."""

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
