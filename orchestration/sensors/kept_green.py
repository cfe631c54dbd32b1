"""The sensor ``kept_green``: after a deploy, it materialises and checks all assets of the processor automatically.

``grey_assets`` decides. This module reads the facts from Dagster, Kafka and the workers, and requests the runs.

Invariants:
    - The sensor materialises only assets that read or publish state. It never deploys or changes a processor.
    - If an asset stays grey (not materialised or not checked), the tick's text names the reason. The reason is also
      written to the file that ``holdfast status`` reads.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec

from holdfast.assets import keys
from holdfast.assets.changelogs import judge_topic
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.layers import is_ours
from holdfast.assets.processors import judge_running
from holdfast.assets.times import current_key, snapshot_partitions
from holdfast.assets.topics import topic_facts
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.system.files import replace_text
from holdfast.orchestration.resources import ClusterResource, LifecycleResource
from holdfast.orchestration.sensors import grey_assets
from holdfast.orchestration.sensors.grey_assets import AssetFacts, Decision, Subject, Wanted
from holdfast.orchestration.view.reasons import grey_file
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.lifecycle.recovery.incidents import wanted
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import processor_now

LOOK_EVERY_S = 15
#: Timeout of a request to Kafka in a tick, seconds.
REQUEST_S = 8.0
#: Maximum seconds to wait for reports of other sensors. After this time, the run is requested without these reports.
OTHERS_WAIT_S = 45.0
#: Minimum seconds between two observations of a topic. It is long because each event takes 5 KB of Dagster's log.
OBSERVE_EVERY_S = 300.0
#: Dagster tag of the runs that this sensor has requested.
GREEN_TAG = "holdfast/green"
#: Number of newest runs with the tag ``GREEN_TAG`` that a tick reads, to count failures.
_RUNS_MAX = 50

_Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


class Memo(msgspec.Struct):
    """The sensor's cursor: the start of each wait for other sensors, and the last observation of each topic."""

    #: Subject (processor) -> the time since which its run waits for other sensors, seconds since 1970.
    due_since: dict[str, float] = {}
    #: Topic -> its number of records at the last observation, and the time of the observation, seconds since 1970.
    observed: dict[str, tuple[int, float]] = {}


def kept_green(definitions: Sequence[ProcessorDefinition], *, enabled: bool) -> dg.SensorDefinition:
    """The sensor ``kept_green`` for these processors; it ignores processors that are not deployed."""
    by_name = {each.name: each for each in definitions}

    @dg.sensor(
        name="kept_green",
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING if enabled else dg.DefaultSensorStatus.STOPPED,
        # Runs that the sensor requests may execute only checks of this asset selection. `all()` alone does not include
        # the checks of topics.
        asset_selection=dg.AssetSelection.all() | dg.AssetSelection.all_asset_checks(),
        description="Materialises what was never materialised once its processor works, and runs checks that did not "
        "run since. Observes topics. Says why an asset stays grey.",
    )
    def keep_green(
        context: dg.SensorEvaluationContext, cluster: ClusterResource, lifecycle: LifecycleResource
    ) -> dg.SensorResult:
        assert context.repository_def is not None
        settings = load_settings()
        memo, now = _memo(context.cursor), lifecycle.world.clock().timestamp()
        try:
            meant = (wanted(each, lifecycle.world) for each in lifecycle.registry.deployments())
            running = {each.processor for each in meant if each.desired == "deployed"}
            deployed = [each for name, each in by_name.items() if name in running]
            topics = topic_facts(deployed, cluster.topics(REQUEST_S))
            subjects = _Reading(context, lifecycle, topics).subjects(deployed)
            decision = grey_assets.decide(subjects, grey_assets.spark_memory(settings))
            events: list[_Event] = [*_present(decision, topics), *_judged(decision, by_name, cluster, lifecycle)]
        except HoldfastError as failed:
            return dg.SensorResult(skip_reason=f"Not known what is grey: {failed}", cursor=context.cursor)
        events += _observed(topics, memo, now)
        waiting = [each for each in decision.runs if not each.at_once]
        memo.due_since = {each.subject: memo.due_since.get(each.subject, now) for each in waiting}
        runs = [each for each in decision.runs if _is_ready(each, memo, now)]
        _tell(grey_file(settings), decision)
        grey = " ".join(f"{name}: {why}" for name, why in decision.reasons.items())
        graph = context.repository_def.asset_graph
        return dg.SensorResult(
            run_requests=[_request(each, settings, lambda key: graph.get(key).check_keys) for each in runs] or None,
            asset_events=events,
            skip_reason=None if runs else grey or "All that is deployed is green.",
            cursor=msgspec.json.encode(memo).decode(),
        )

    return keep_green


class _Reading:
    """Reads the facts that one tick needs from Dagster and the workers."""

    def __init__(
        self, context: dg.SensorEvaluationContext, lifecycle: LifecycleResource, topics: Mapping[str, dict[str, Any]]
    ) -> None:
        assert context.repository_def is not None
        self._instance, self._lifecycle, self._topics = context.instance, lifecycle, topics
        self._graph = context.repository_def.asset_graph
        found = self._graph.get_all_asset_keys()
        self._records = {each.asset_entry.asset_key: each for each in self._instance.get_asset_records(list(found))}
        storage = self._instance.event_log_storage
        self._checks = storage.get_latest_asset_check_execution_by_key(list(self._graph.asset_check_keys))
        tagged = dg.RunsFilter(tags={GREEN_TAG: "first"})
        self._runs = self._instance.get_run_records(tagged, limit=_RUNS_MAX)
        self._active = self._instance.get_run_records(dg.RunsFilter(statuses=list(_ACTIVE)), limit=_RUNS_MAX)

    def subjects(self, deployed: Sequence[ProcessorDefinition]) -> list[Subject]:
        """Returns the facts about each deployed processor, and about the installation, which includes all topics."""
        names = {each.name for each in deployed}
        own: dict[str, list[dg.AssetKey]] = {name: [] for name in (*names, grey_assets.INSTALLATION)}
        for key in sorted(each for each in self._graph.get_all_asset_keys() if is_ours(each.path)):
            if key.path[0] in (keys.OPERATIONS,) or key.path[1] == keys.BROKEN_GROUP:
                own[grey_assets.INSTALLATION].append(key)
            elif key.path[0] == keys.TOPICS:
                own[grey_assets.INSTALLATION] += [key] if key.path[1] in self._topics else []
            elif key.path[1] in names:
                own[key.path[1]].append(key)
        return [self._subject(name, found) for name, found in own.items()]

    def _subject(self, name: str, found: Sequence[dg.AssetKey]) -> Subject:
        assets = tuple(map(self._asset, found))
        if not any(not each.materialized or each.checks_alone or each.checks_inside for each in assets):
            return Subject(name, assets)
        mine = set(found)
        ended = [each for each in self._runs if each.dagster_run.is_finished and _about(each.dagster_run) & mine]
        failed = next((n for n, each in enumerate(ended) if each.dagster_run.is_success), len(ended))
        now = self._lifecycle.world.clock().timestamp()
        return Subject(
            name,
            assets,
            works=name == grey_assets.INSTALLATION or self._works(name),
            busy=any(_about(each.dagster_run) & mine for each in self._active),
            failed=failed,
            since_failure_s=now - (ended[0].end_time or now) if ended else 0.0,
        )

    def _works(self, processor: str) -> bool:
        limits = Limits(stuck_after_s=load_settings().stuck_after_s)
        return processor_now(processor, self._lifecycle.world, limits).answer.passed

    def _asset(self, key: dg.AssetKey) -> AssetFacts:
        node, record = self._graph.get(key), self._records.get(key)
        last = None if record is None else record.asset_entry.last_materialization_record
        due = [each for each in node.check_keys if not self._is_run(each, last)]
        alone = [each for each in due if len(self._graph.get_execution_set_asset_and_check_keys(each)) == 1]
        return AssetFacts(
            name=key.to_user_string(),
            layer=key.path[0] if key.path[-1].rpartition("_")[2] != keys.MAINTENANCE else keys.WAREHOUSE,
            materialized=last is not None,
            runnable=node.is_materializable,
            checks_alone=tuple(sorted(each.name for each in alone)) if last is not None else (),
            checks_inside=tuple(sorted(each.name for each in due if each not in alone)),
            exists=key.path[0] != keys.TOPICS or key.path[1] in self._topics,
        )

    def _is_run(self, check: dg.AssetCheckKey, last: dg.EventLogRecord | None) -> bool:
        """Whether a check was executed since its asset was last materialised; Dagster's UI uses the same rule."""
        run = self._checks.get(check)
        event = None if run is None or run.event is None else run.event.dagster_event
        if run is None or event is None or event.event_type != dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            return False  # The check is only planned: its run has not executed it yet, or failed before.
        if last is None or run.run_id == last.run_id:
            return True
        target = event.asset_check_evaluation_data.target_materialization_data
        return target.storage_id == last.storage_id if target is not None else run.create_timestamp > last.timestamp


_ACTIVE = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def _about(run: dg.DagsterRun) -> set[dg.AssetKey]:
    """The keys of the assets that a run materialises or whose checks it executes."""
    return set(run.asset_selection or ()) | {each.asset_key for each in run.asset_check_selection or ()}


def _tell(file: Path, decision: Decision) -> None:
    """Write the reasons why assets are grey to a file; its folder is created if it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(decision.reasons))


def _present(decision: Decision, topics: Mapping[str, dict[str, Any]]) -> Iterator[dg.AssetMaterialization]:
    for name in decision.present:
        key = dg.AssetKey.from_user_string(name)
        # Only the number of partitions is reported here. The number of records is reported by observations. Otherwise
        # Dagster's page would show the record count of this single event forever.
        lasting = {each: value for each, value in topics.get(key.path[-1], {}).items() if each == "partitions"}
        said = "Its processor is deployed." if key.path[0] == keys.CONNECTORS else "It exists."
        yield dg.AssetMaterialization(key, description=said, metadata=lasting)


def _judged(
    decision: Decision,
    definitions: Mapping[str, ProcessorDefinition],
    cluster: ClusterResource,
    lifecycle: LifecycleResource,
) -> Iterator[dg.AssetCheckEvaluation]:
    """Evaluates the checks of assets that a command deployed, with the same code that a Dagster run uses."""
    topics = cluster.topics(REQUEST_S)
    for name in decision.judged:
        layer, processor, last = dg.AssetKey.from_user_string(name).path
        definition = definitions[processor]
        found: Sequence[CheckResult] = []
        if layer == keys.PROCESSORS:
            found = judge_running(definition, cluster, lifecycle)
        else:
            logs = [each for each in definition.topology.changelogs if last == f"{each.store}_changelog"]
            facts = topics.describe([spec.name for spec in definition.topology.topics()])
            found = [result for log in logs for result in judge_topic(definition, log, topics, facts)]
        yield from (each.evaluation(blocking=True) for each in found)


def _observed(topics: Mapping[str, dict[str, Any]], memo: Memo, now: float) -> list[dg.AssetObservation]:
    """An observation for each topic whose number of records changed since its last observation. Updates ``memo``."""
    events = []
    for name, facts in topics.items():
        records, at = memo.observed.get(name, (-1, 0.0))
        if facts["records"] == records or (records >= 0 and abs(now - at) < OBSERVE_EVERY_S):
            continue
        rate = {}
        if records >= 0 and now > at:  # If the clock was set back, no rate can be computed.
            rate = {"records_per_s": round(max(0, facts["records"] - records) / (now - at), 2)}
        events.append(dg.AssetObservation(keys.topic_key(name), metadata={**facts, **rate}))
        memo.observed[name] = (facts["records"], now)
    return events


def _is_ready(wanted: Wanted, memo: Memo, now: float) -> bool:
    """Whether to request the run now. False while the run waits for the reports of other sensors."""
    return wanted.at_once or abs(now - memo.due_since.get(wanted.subject, now)) >= OTHERS_WAIT_S


#: Function: asset key -> keys of all checks of this asset that a materialisation of the asset also executes.
_ChecksOf = Callable[[dg.AssetKey], Iterable[dg.AssetCheckKey]]


def _request(wanted: Wanted, settings: Settings, checks_of: _ChecksOf) -> dg.RunRequest:
    selected = [dg.AssetKey.from_user_string(each) for each in wanted.assets]
    checks = [dg.AssetCheckKey(dg.AssetKey.from_user_string(asset), name) for asset, name in wanted.checks]
    # If a request lists checks, Dagster runs only the listed checks. So all checks of the selected assets are added.
    if checks:
        checks += [check for key in selected for check in sorted(checks_of(key))]
    partition = current_key(snapshot_partitions(settings.snapshots)) if wanted.is_publishing else None
    return dg.RunRequest(
        partition_key=partition,
        # The list may be empty, but must not be None. None would select every asset, and the run would deploy
        # processors.
        asset_selection=selected,
        asset_check_keys=checks or None,
        tags={GREEN_TAG: "first"},
    )


def _memo(cursor: str | None) -> Memo:
    """The memo in the last tick's cursor; an empty memo if another version of Holdfast wrote the cursor."""
    try:
        return msgspec.json.decode(cursor or "{}", type=Memo)
    except msgspec.MsgspecError:
        return Memo()
