"""The class ``Application``, with which users declare a processor and run it.

A declaration accesses neither Kafka nor the disk. ``topology()`` returns the frozen description of the application.
``run()`` starts a worker. ``run`` imports the modules that only a worker needs, for example RocksDB, because the
Dagster code server only reads declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.infra.log import configure_level, configure_logging
from holdfast.infra.system.privacy import private_files
from holdfast.processors.application.arguments import (
    ApplicationInvalid,
    Guarantee,
    at_least,
    callbacks_of,
    check_changelog_config,
    check_log_level,
    check_names,
    check_renamed_stores,
    check_state,
    commit_bounds,
    of_type,
    one_of,
    whole_number,
)
from holdfast.processors.application.broken_definition import refuse_while_imported
from holdfast.processors.application.clients import ApplicationClients
from holdfast.processors.application.connection import ConnectionConfig, connection_of
from holdfast.processors.application.describe import Declared, describe
from holdfast.processors.application.schedules import ApplicationSchedules
from holdfast.processors.application.sources import ApplicationSources
from holdfast.processors.application.tables import ApplicationTables
from holdfast.processors.engine.backends import BACKENDS, StateBackend
from holdfast.processors.engine.changelog.names import check_name, shadow_group
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.groups import Streams
from holdfast.processors.engine.dataframe.list_sink import ListSink, collected
from holdfast.processors.engine.dataframe.store_specs import declare_ttl_calls
from holdfast.processors.engine.joins.global_tables import GlobalTable
from holdfast.processors.engine.memory_plan import MemoryPlan, plan_memory
from holdfast.processors.engine.record_size import OVERHEAD_BYTES, record_limits
from holdfast.processors.engine.record_times import record_times
from holdfast.processors.engine.runtime.ownership import changelog_facts
from holdfast.processors.engine.runtime.ownership.checks import own_topics
from holdfast.processors.engine.schedules.declaration import Schedules
from holdfast.processors.engine.sources.declaration import Sources
from holdfast.processors.engine.steps.durations import milliseconds
from holdfast.processors.engine.steps.node import steps_of
from holdfast.processors.engine.steps.store_options import StoreOptions
from holdfast.processors.engine.topology import SourceLog, Topology

if TYPE_CHECKING:
    from holdfast.infra.kafka.cluster import KafkaCluster
    from holdfast.infra.settings import Settings
    from holdfast.processors.application.worker_start import How
    from holdfast.processors.engine.checkpoints.ports import Storage
    from holdfast.processors.engine.runtime.loop import Worker
    from holdfast.processors.engine.runtime.options import RuntimeOptions, Start
    from holdfast.processors.engine.runtime.owner_commands.owner import Owner
    from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
    from holdfast.processors.engine.runtime.ports import Cluster
    from holdfast.processors.engine.runtime.task.failure_policy import (
        OnConsumerError,
        OnMessageProcessed,
        OnProcessingError,
        OnProducerError,
    )
    from holdfast.processors.engine.state.databases.database import Databases
    from holdfast.processors.engine.state.folder import StateFolder


class Application(ApplicationSources, ApplicationTables, ApplicationClients, ApplicationSchedules):
    """A stateful Kafka processor.

    Args:
        broker_address: Kafka's bootstrap servers, or a ``ConnectionConfig`` that also has the security settings. None
            uses the settings, or the embedded broker.
        consumer_group: The consumer group. It is also the processor's name.
        auto_offset_reset: Where the first start of a group begins: ``earliest`` or ``latest``. A partition that is
            added after the first start is read from its first offset.
        commit_interval: Seconds between commits. None adapts the interval: 0.1 s while the worker keeps up, 1 s while
            it catches up.
        commit_interval_min: Seconds between commits while the worker keeps up. If it is given, ``commit_interval``
            applies only while the worker catches up.
        commit_every: The number of messages after which the worker commits; 0 commits by time only.
        processing_guarantee: ``exactly-once`` or ``at-least-once``.
        state_dir: The root folder of local state; None uses the settings.
        use_changelog_topics: Whether each store has a changelog. Without changelogs, state can't be restored after the
            loss of a disk.
        renamed_stores: Maps the new name of a store to its former name. The stored state keeps the former name.
        changelog_config: For each store, configuration entries of its changelog in addition to the standard ones. An
            entry that could lose state is refused.
        auto_create_topics: Whether the start creates missing topics.
        consumer_extra_config: librdkafka settings for the consumer. A setting that contradicts the engine is refused.
        producer_extra_config: librdkafka settings for the producer. A setting that contradicts the engine is refused.
        on_processing_error: A function of (error, message, logger) for failed messages; True skips the message.
        on_consumer_error: A function like ``on_processing_error``, called first if a message can't be deserialized.
        on_producer_error: A function like ``on_processing_error``, called first if an output can't be serialized. No
            callback gets errors of brokers.
        on_message_processed: A function of (topic, partition, offset), called after each message. The worker then
            processes one message at a time, which is slower.
        dead_letter_topic: The topic for messages that fail; None stops the worker at the first failure.
        loglevel: The log level as text; None leaves logging to the caller.
        broker_availability_timeout: Maximum seconds without any broker before the worker stops with an error.
        slot: The worker's slot (its number, state folder and lock) on this machine; None takes the first free slot.
        standby_replicas: The number of other processes that follow each task's changelogs, so that a failover replays
            only the newest records. None uses the settings.
        state_backend: ``rocksdb`` keeps state on disk. ``memory`` keeps it in the process, and each start restores it
            from the changelogs.
        memory_max_bytes: Maximum memory of the process; None uses the settings.
        max_wait: Streams that share a store wait for each other, so that their messages are processed in the order of
            event times. This is the maximum wait, in milliseconds or a timedelta; None waits without limit.
        description: One sentence about the processor, for the catalog. Default: the first paragraph of the module's
            docstring, if the module has no other processor.
        owners: The teams or persons who own the processor, as Dagster writes them: ``team:<name>`` or a mail address.
        prove: Whether a deployment first tests a new version on the last messages; False for functions with side
            effects.
    """

    def __init__(  # tidy: allow-wide because users who come from Quix Streams change only the import.
        self,
        broker_address: str | ConnectionConfig | None = None,
        *,
        consumer_group: str = "holdfast",
        auto_offset_reset: Literal["earliest", "latest"] = "latest",
        commit_interval: float | None = None,
        commit_interval_min: float | None = None,
        commit_every: int = 0,
        processing_guarantee: Guarantee = "exactly-once",
        state_dir: str | Path | None = None,
        use_changelog_topics: bool = True,
        renamed_stores: Mapping[str, str] | None = None,
        changelog_config: Mapping[str, Mapping[str, Any]] | None = None,
        auto_create_topics: bool = True,
        consumer_extra_config: Mapping[str, Any] | None = None,
        producer_extra_config: Mapping[str, Any] | None = None,
        on_processing_error: OnProcessingError | None = None,
        on_consumer_error: OnConsumerError | None = None,
        on_producer_error: OnProducerError | None = None,
        on_message_processed: OnMessageProcessed | None = None,
        dead_letter_topic: str | None = None,
        loglevel: str | None = "INFO",
        broker_availability_timeout: float = 120.0,
        slot: str | None = None,
        standby_replicas: int | None = None,
        state_backend: StateBackend = "rocksdb",
        memory_max_bytes: int | None = None,
        max_wait: int | timedelta | None = None,
        description: str = "",
        owners: tuple[str, ...] = (),
        prove: bool = True,
    ) -> None:
        self._commits = commit_bounds(commit_interval, commit_interval_min, processing_guarantee)
        whole_number("commit_every", commit_every, 0)
        at_least("broker_availability_timeout", broker_availability_timeout, 0.0)
        one_of("processing_guarantee", processing_guarantee, ("exactly-once", "at-least-once"))
        one_of("auto_offset_reset", auto_offset_reset, ("earliest", "latest"))
        check_state(state_backend, use_changelog_topics, standby_replicas)
        check_log_level(loglevel)
        of_type(bool, auto_create_topics=auto_create_topics, prove=prove)
        of_type(str, consumer_group=consumer_group, slot=slot, dead_letter_topic=dead_letter_topic)
        self.consumer_group = check_name(consumer_group, "consumer group")
        check_names(slot=slot, dead_letter_topic=dead_letter_topic)
        self._connection, self._broker_timeout_s = connection_of(broker_address), broker_availability_timeout
        self.description, self.owners, self.prove = description, owners, prove
        self._offset_reset, self._commit_every, self._slot = auto_offset_reset, commit_every, slot
        self._exactly_once, self._use_changelogs = processing_guarantee == "exactly-once", use_changelog_topics
        self.state_dir = None if state_dir is None else Path(state_dir)
        self._renamed_stores = check_renamed_stores(renamed_stores)
        chosen = check_changelog_config(changelog_config, use_changelog_topics)
        self._changelog_config = {self._renamed_stores.get(store, store): entries for store, entries in chosen.items()}
        self._consumer_config = dict(consumer_extra_config or {})
        self._producer_config = dict(producer_extra_config or {})
        self._callbacks = callbacks_of(on_processing_error, on_consumer_error, on_producer_error, on_message_processed)
        self._may_create, self._dead_letter_topic, self._log_level = auto_create_topics, dead_letter_topic, loglevel
        self._start: Start | None = None
        self._errand: Callable[[Owner, Ticket], Work] | None = None
        self._standby_replicas, self._state_backend = standby_replicas, state_backend
        self._memory_max_bytes = None if memory_max_bytes is None else plan_memory(memory_max_bytes).total
        self._wait_s = None if max_wait is None else milliseconds("max_wait", max_wait, least=0) / 1000
        self._frames: dict[str, StreamingDataFrame] = {}
        own = self.consumer_group, self._renamed_stores
        self._streams = Streams(consumer_group, self._frames, Schedules(*own), Sources(*own), trial=self._trial)
        self._stores: dict[str, StoreOptions] = {}
        self._globals: dict[str, GlobalTable] = {}
        self._table_topics: set[str] = set()
        self._source_logs: list[SourceLog] = []
        self._worker: Worker | None = None
        self._foreground = self._stop_asked = False

    # -- declarations ----------------------------------------------------------------------------------------------

    def topology(self) -> Topology:
        """Returns the frozen description of the application."""
        return describe(self._declared())

    @property
    def broker_address(self) -> str | None:
        """Kafka's bootstrap servers, as they were given."""
        return None if self._connection is None else self._connection.bootstrap_servers

    @property
    def frames(self) -> Mapping[str, StreamingDataFrame]:
        """Maps each input topic to its stream. Repartition topics of ``group_by`` are included."""
        return self._frames

    def _trial(self, frame: StreamingDataFrame, *given: Any) -> list[Any]:
        from holdfast.processors.application.trial import trial_of

        self._declared()
        return trial_of(frame, *given)

    def _declared(self) -> Declared:
        for choice in self._streams.choices:
            choice.lead_to(self._streams.topics, {*self._streams.by_topic, *self._globals})
        declare_ttl_calls(steps_of(frame.source for frame in self._frames.values()), self._stores)
        return Declared(
            self.consumer_group,
            self._frames,
            self._stores,
            self._changelog_config if self._use_changelogs else None,
            self._renamed_stores,
            self._dead_letter_topic,
            self._consumer_config,
            self._globals,
            self._table_topics,
            self._source_logs,
            self._streams,
            exactly_once=self._exactly_once,
            prove=self.prove,
            asks=self._callbacks.skip,
            skips_old=self._offset_reset != "earliest",
        )

    # -- running a worker ------------------------------------------------------------------------------------------

    def run(
        self,
        dataframe: StreamingDataFrame | None = None,
        *,
        count: int = 0,
        timeout: float = 0.0,
        collect: bool = False,
        metadata: bool = False,
        serve: bool = False,
    ) -> list[Any]:
        """Runs a worker until SIGTERM, SIGINT or ``stop``. Shows rate, lag and commits on stderr.

        Args:
            dataframe: Ignored, because all declared streams run. Accepted for code that was written for Quix Streams.
            count: The run ends after this many messages and the windows and timers that became due; 0 means no limit.
            timeout: The run ends after this many seconds without a message; 0 means never. With ``group_by``, the run
                can last up to 10 seconds longer, while messages wait for the watermarks of other tasks.
            collect: Whether to return the results of all streams: the values that leave the last step of each branch.
                It needs ``count`` or ``timeout``.
            metadata: Whether each returned value also gets fields with the message's key, timestamp, headers, topic,
                partition and offset.
            serve: Whether the worker serves status, metrics and queries of its state over HTTP, as a deployed one does.

        Raises:
            HoldfastError: The error that stopped the worker. All earlier messages are committed.
        """
        refuse_while_imported()
        self._foreground = True
        found, kept = ListSink(metadata=metadata), collect and bool(count or timeout)
        with private_files(settings := self._settings()), collected(self._frames, found if kept else None):
            self.run_on(self.cluster(settings), settings, count=count, timeout=timeout, serve=serve)
        return found.data

    def cluster(self, settings: Settings) -> KafkaCluster:
        """Returns the connection to the application's Kafka cluster, with the application's client settings."""
        from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
        from holdfast.infra.kafka.cluster import KafkaCluster

        memory, of = self._memory(settings), self._connection
        return KafkaCluster(
            self.broker_address or bootstrap_servers(settings),
            fetched_bytes=memory.fetched,
            queued_bytes=memory.queued,
            client_config={**client_config(settings), **({} if of is None else of.client_config)},
            consumer_config=self._consumer_config,
            producer_config=self._producer_config,
        )

    def run_on(
        self,
        cluster: Cluster,
        settings: Settings,
        *,
        count: int = 0,
        timeout: float = 0.0,
        serve: bool = False,
        databases: Databases | None = None,
        storage: Storage | None = None,
    ) -> None:
        """Runs the application as ``run`` does, but on the Kafka cluster that the caller passes.

        Args:
            cluster: The Kafka cluster, real or in memory.
            settings: Paths, checkpoints, standbys and memory.
            count: The run ends after this many messages and the windows and timers that became due; 0 means no limit.
            timeout: The run ends after this many seconds without a message; 0 means never.
            serve: Whether to serve status and control over HTTP.
            databases: The databases of local state; None opens the databases of ``state_backend``.
            storage: The checkpoint store; None uses the settings.
        """
        from holdfast.infra.kafka.clients.producer import BATCH_BYTES_MAX
        from holdfast.processors.application.worker_start import How, make_worker
        from holdfast.processors.engine.checkpoints.keeper import open_keeper
        from holdfast.processors.engine.runtime.change_of_workers import change_for
        from holdfast.processors.engine.runtime.ownership.assignment import Assignment
        from holdfast.processors.engine.runtime.reading.watermark_writer import groupings_of
        from holdfast.processors.engine.state.folder import StateFolder

        topology = self.topology()
        if not topology.inputs:
            raise ApplicationInvalid(
                f"Application {self.consumer_group} has no input topic; expected at least one.",
                action="Declare one with `app.dataframe(topic)`.",
            )
        state_dir, memory = self.state_dir or settings.paths.state, self._memory(settings)
        facts, warned = own_topics.prepare(cluster.topics(), topology, may_create=self._may_create)
        options, written = self._options(), topology.written()
        start = self._start or options.start
        options = replace(
            options,
            record_bytes_max=(limits := record_limits(written, facts, cluster.record_bytes_max)),
            record_times=record_times(written, topology.inputs, facts, cluster.clock),
            batch_bytes_max=min([BATCH_BYTES_MAX, *(most + OVERHEAD_BYTES for most in limits.values())]),
            standby_replicas=self._standbys(settings),
            overlay_bytes_max=memory.overlay,
            state_cache_bytes=memory.state_cache,
            exports=settings.paths.exports(self.consumer_group),
            groupings=groupings_of(topology, facts),
            start=start,
            change=change_for(settings.paths, state_dir, self.consumer_group, told=serve and not start.shadow),
        )
        folder = StateFolder(state_dir, self.consumer_group, self._slot)
        try:
            databases = databases or BACKENDS[self._state_backend].open(memory)
            kept = (databases, settings, storage, folder, cluster.clock, topology)
            keeper = None if start.shadow else open_keeper(*kept)
            assignment = Assignment(topology, cluster, folder, databases, options, keeper)
            parts = (topology, cluster, assignment, folder, settings)
            worker = make_worker(self._declared(), self._callbacks, *parts)
            worker.maintenance.errand = self._errand
            worker.warnings = (*warned, *changelog_facts.warnings_at_start(cluster.topics(), topology, facts))
            try:
                self._work(worker, settings, folder, How(count, timeout, serve, self._foreground))
            finally:
                if keeper is not None:
                    keeper.close()
        finally:
            folder.release()

    def _standbys(self, settings: Settings) -> int:
        # A standby (local copy of another process's task) is closed before the task opens it. A database in memory
        # loses its content when it is closed. A re-seed writes local state to the changelog; a standby could overwrite
        # this local state from the old changelog.
        if not BACKENDS[self._state_backend].durable or (self._start is not None and self._start.reseed):
            return 0
        return settings.standby_replicas if self._standby_replicas is None else self._standby_replicas

    def _memory(self, settings: Settings) -> MemoryPlan:
        return plan_memory(self._memory_max_bytes or settings.memory_max_mb << 20)

    def stop(self) -> None:
        """Asks the running worker to finish its batch, to commit and to stop. Any thread may call it."""
        self._stop_asked = True
        if self._worker is not None:
            self._worker.stop()

    def clear_state(self, *, rewind: Literal["stay", "earliest"] = "stay") -> None:
        """Empties all stores: their changelogs, their checkpoints, and the local state on this machine.

        Other machines clear their local state at their next start. After an interruption, call the method again.

        Args:
            rewind: ``stay`` keeps the input offsets. ``earliest`` sets them to the beginning of the inputs.

        Raises:
            CommandRefused: The consumer group has a live member, on this or another machine.
            StateFolderTaken: A live worker process uses local state on this machine.
            HoldfastError: The error of the worker that clears the state; a part of the state is cleared.
        """
        with private_files(settings := self._settings()):
            self.clear_state_on(self.cluster(settings), settings, rewind=rewind)

    def clear_state_on(
        self, cluster: Cluster, settings: Settings, *, rewind: Literal["stay", "earliest"] = "stay"
    ) -> None:
        """Does the same as ``clear_state`` (empties all stores), but on the Kafka cluster that the caller passes."""
        from holdfast.processors.engine.commands.clean_slate import CleanSlate

        one_of("rewind", rewind, ("stay", "earliest"))
        root = self.state_dir or settings.paths.state
        slate = CleanSlate(self.topology(), cluster, root, settings, rewind=rewind == "earliest")
        slate.prepare()
        if slate.needs_worker:
            made = copy(self)
            made._start, made._standby_replicas, made._errand = slate.start, 0, slate.errand
            made.run_on(cluster, slate.settings)
        slate.finish()

    def _settings(self) -> Settings:
        from holdfast.infra.settings import load_settings

        settings = load_settings()
        if self._log_level is not None:
            configure_logging(self._log_level.upper(), settings.log_format)
        return settings

    def configure_logging(self, settings: Settings) -> None:
        """Logs to stderr all messages of level ``loglevel`` and above.

        If logging is already configured, only sets the level. Without ``loglevel``, does nothing.
        """
        if self._log_level is not None:
            configure_level(self._log_level.upper(), settings.log_format)

    def _work(self, worker: Worker, settings: Settings, folder: StateFolder, how: How) -> None:
        from holdfast.processors.application.worker_start import run_worker

        self._worker = worker
        if self._stop_asked:
            worker.stop()
        try:
            run_worker(worker, self.consumer_group, folder.slot, settings, how)
        finally:
            self._worker = None
            self._stop_asked = self._foreground = False

    def _options(self) -> RuntimeOptions:
        from holdfast.processors.engine.runtime.options import RuntimeOptions

        return RuntimeOptions(
            group=self.consumer_group,
            exactly_once=self._exactly_once,
            offset_reset=self._offset_reset,
            commits=self._commits,
            commit_every=self._commit_every,
            broker_timeout_s=self._broker_timeout_s,
            wait_s=self._wait_s,
        )

    def with_run_overrides(self, *, slot: str | None, auto_create_topics: bool, start: Start | None = None) -> None:
        """Replaces options of the declaration by options from the deployed worker's command line.

        Raises:
            ApplicationInvalid: ``start`` asks to write a store's changelog again from local state (re-seed), but the
                store has no changelog.
        """
        self._slot = None if slot is None else check_name(slot, "slot")
        self._may_create = auto_create_topics
        for store in () if start is None else sorted(start.reseed):
            one_of("reseed", store, tuple(spec.store for spec in self.topology().changelogs))
        self._start = start

    def shadow(self, store: str) -> Application:
        """Returns an application that rebuilds one store from the beginning of its input topics.

        The application has its own consumer group, so it runs beside the processor.

        Run it with ``Start(shadow=True)``.

        Raises:
            ApplicationInvalid: The application has no such store.
        """
        topology = self.topology()
        one_of("shadow", store, tuple(spec.name for spec in topology.stores))
        part = next(sub for sub in topology.subtopologies if store in sub.stores)
        made = copy(self)
        made.consumer_group = shadow_group(self.consumer_group, store)
        made._offset_reset, made._standby_replicas = "earliest", 0
        made._frames = {topic: self._frames[topic] for topic in part.inputs}
        # Schedules and sources are left out. A rebuild only reads old messages again, and can repeat neither clock
        # times nor the work of a source.
        made._streams = Streams(made.consumer_group, made._frames)
        made._stores = {of: each for of, each in self._stores.items() if of in part.stores}
        made._changelog_config = {of: each for of, each in self._changelog_config.items() if of in part.stores}
        made._renamed_stores = {new: old for new, old in self._renamed_stores.items() if old in part.stores}
        return made
