"""The sensor ``topics_watched``: inspects the topics of all deployed processors and updates their asset checks.

Invariants:
    - A tick requests no run. The number of Kafka requests of a tick does not grow with processors, stores or
      partitions. Workers are asked only if a topic's id changed, that is, if the topic was recreated.
    - A check is updated only if its result changed, or if Dagster shows another result. If a topic can't be read, its
      check keeps the last result.
    - A processor is not judged while a plan is applied to it.
"""

from collections.abc import Iterable, Sequence

import dagster as dg

from holdfast.assets.checks import topics as topic_checks
from holdfast.assets.checks.result import CheckResult
from holdfast.infra.errors import HoldfastError
from holdfast.orchestration.resources import ClusterResource, LifecycleResource
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.deploy.marking import judged
from holdfast.processors.lifecycle.deploy.present import slots_at_work
from holdfast.processors.lifecycle.health import topics as topic_health
from holdfast.processors.lifecycle.health.topics import Finding, Look, WatchMemory

WATCH_EVERY_S = 15
#: Timeout of each Kafka request of a tick, seconds.
REQUEST_S = 8.0
#: Verbs that replace a changelog or the committed offsets. After such a verb, a replaced topic or offset is no fault.
REPLACING_VERBS = ("backfill", "clear", "reposition", "restore")


def topics_watch(definitions: Sequence[ProcessorDefinition]) -> dg.SensorDefinition:
    """The sensor ``topics_watched`` for these processors; it ignores processors that are not deployed."""
    topologies = {each.name: each.topology for each in definitions}

    @dg.sensor(
        minimum_interval_seconds=WATCH_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Watches the topics of all deployed processors, and updates their checks. Finds changed "
        "configuration, deleted and recreated topics, lost records of changelogs, hanging transactions, input that was "
        "deleted before it was read, and added partitions.",
    )
    def topics_watched(
        context: dg.SensorEvaluationContext, cluster: ClusterResource, lifecycle: LifecycleResource
    ) -> dg.SensorResult:
        memory = topic_health.decode_memory(context.cursor)
        events: list[dg.AssetCheckEvaluation] = []
        try:
            events, memory = _registered(topologies, memory, lifecycle)
            names = [each.processor for each in lifecycle.registry.deployments()]
            deployed = [topologies[name] for name in names if name in topologies]
            now = lifecycle.world.clock().timestamp()
            topics = cluster.topics(REQUEST_S)
            look = topic_checks.look_at(deployed, topics, cluster.client_config, now, timeout_s=REQUEST_S)
            findings, after = _judge(deployed, look, memory, cluster, lifecycle)
        except HoldfastError as failed:
            return dg.SensorResult(
                asset_events=events,
                skip_reason=f"The topics could not be read: {failed}",
                cursor=topic_health.encode_memory(memory),
            )
        changed = {each.name for each in topic_health.changed(findings, memory)}
        # Since the last tick, a run may have found a fault that is repaired by now. Then Dagster shows a failed check,
        # although this sensor's own result did not change. So the results that Dagster shows are compared, too.
        shown = _shown(context.instance, findings, now)
        news = [each for each in findings if each.name in changed or shown.get(each.name, each.passed) != each.passed]
        for each in news:
            if not each.passed:
                context.log.warning(f"{each.check}: {each.text}")
        failing = sum(not each.passed for each in findings)
        return dg.SensorResult(
            asset_events=[*events, *(topic_checks.evaluation(each) for each in news)],
            skip_reason=f"{len(findings)} checks, {failing} failing, {len(news)} updated.",
            cursor=topic_health.encode_memory(after),
        )

    return topics_watched


def _shown(instance: dg.DagsterInstance, findings: Sequence[Finding], before: float) -> dict[str, bool]:
    """Name of a finding -> whether its check passed in Dagster's newest result of this check.

    Results that are not older than ``before`` are left out, because they may come from newer facts than the finding.
    ``before`` is the time at which the sensor read the topics, in seconds since 1970.
    """
    names = {dg.AssetCheckKey(topic_checks.key_of(each), each.check): each.name for each in findings}
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(names))
    shown = {}
    for key, record in found.items():
        event = None if record.event is None or record.create_timestamp >= before else record.event.dagster_event
        if event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            shown[names[key]] = event.asset_check_evaluation_data.passed
    return shown


def _registered(
    processors: Iterable[str], memory: WatchMemory, lifecycle: LifecycleResource
) -> tuple[list[dg.AssetCheckEvaluation], WatchMemory]:
    """The changed results of the check ``registered`` of each processor, and the updated memory for the next tick.

    The check fails for a processor that was adopted (entered without a deploy) into a rebuilt registry. It also fails
    if the processor's newest deployment is missing in Holdfast's registry. When the check passes again, this result is
    reported too.
    """
    known = {each.processor: each for each in lifecycle.registry.deployments()}
    texts = topic_checks.adopted_now(lifecycle)
    results: dict[str, CheckResult] = {}
    for name in processors:
        old = judged(name, known.get(name), lifecycle.world)
        if name in known or old is not None:
            results[f"{topic_checks.REGISTERED} {name}"] = topic_checks.registered(name, texts.get(name, ""), old)
    told = {name: "" if each.passed else each.description for name, each in results.items()}
    events = [each.evaluation() for name, each in results.items() if memory.told.get(name) != told[name]]
    return events, WatchMemory(memory.topics, {**memory.told, **told})


def _judge(
    deployed: Sequence[Topology],
    look: Look,
    memory: WatchMemory,
    cluster: ClusterResource,
    lifecycle: LifecycleResource,
) -> tuple[list[topic_health.Finding], WatchMemory]:
    """Returns the check results for all topics, and the memory with which the next tick compares its own results."""
    strange = topic_health.suspects(deployed, look, memory)
    known = topic_health.remember(deployed, look, memory, _owners(strange, lifecycle), _remade(strange, lifecycle))
    held = topic_health.held_too_long(known, look.now)
    transactions = topic_checks.open_on(held, cluster.bootstrap, cluster.client_config)
    begun = lifecycle.registry.journal.applies(open_only=True)
    busy = {each.processor for each in begun if each.is_live}
    findings = list(topic_health.judge(deployed, look, known, transactions, busy=busy))
    names = {each.name for topology in deployed for each in topology.topics()}
    names |= {topology.processor for topology in deployed}
    told = {name: short for name, short in memory.told.items() if name.partition(" ")[2] in names}
    told |= {each.name: each.short for each in findings}
    return findings, WatchMemory(known, told)


def _owners(processors: Sequence[str], lifecycle: LifecycleResource) -> dict[str, set[str]]:
    """Changelog -> topic ids that running workers report as the origin of their state.

    If the changelog was deleted and created again, the new topic has another id than the one that a worker reports.
    """
    found: dict[str, set[str]] = {}
    for name in processors:
        for slot in slots_at_work(name, lifecycle.world):
            status = lifecycle.world.statuses(name, slot).status()
            for task in () if status is None else status.tasks:
                for at in task.stores.values():
                    if at.get("topic_id"):
                        found.setdefault(at["changelog"], set()).add(at["topic_id"])
    return found


def _remade(processors: Sequence[str], lifecycle: LifecycleResource) -> dict[str, float]:
    """Processor -> the time when its newest successful apply (executed plan) of a verb in ``REPLACING_VERBS`` ended.

    The times are in seconds since 1970.
    """
    found: dict[str, float] = {}
    for name in processors:
        for each in reversed(lifecycle.registry.journal.applies(10, processor=name)):
            if each.outcome == "done" and each.finished_at is not None and each.verb in REPLACING_VERBS:
                found[name] = each.finished_at.timestamp()
    return found
