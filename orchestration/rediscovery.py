"""Rebuilds Holdfast's registry after a loss, from the running processors; called when an empty registry is opened.

Invariants:
    - If the supervisor or the broker does not answer, nothing is recorded. Then the registry is still empty, so the
      next process that opens the registry tries again.
"""

from collections.abc import Mapping
from itertools import pairwise

import structlog

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.deploy.marks import read_mark
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.paths import Paths
from holdfast.infra.settings import Settings
from holdfast.processors.application.registration import ProcessorDefinition, load_processors
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.deploy.code_files import code_of
from holdfast.processors.lifecycle.deploy.marking import keep_mark
from holdfast.processors.lifecycle.deploy.releases import release_id
from holdfast.processors.lifecycle.plans.facts.shape import as_document, shape_of
from holdfast.processors.lifecycle.ports import now_utc
from holdfast.processors.lifecycle.recovery.rediscovery import ADOPT, Adopted, Found, rediscover

#: Timeout of the Kafka request for the numbers of partitions of topics, seconds.
TOPICS_S = 5.0

log = structlog.get_logger(__name__)


def adopt_what_runs(
    settings: Settings, registry: Registry, asked: Mapping[str, tuple[tuple[str, ...], dict[str, str]]]
) -> tuple[Adopted, ...]:
    """Record the running processors as deployments in an empty registry; returns the recorded processors.

    ``asked`` maps each program of the supervisor to its command and environment.
    """
    try:
        programs = open_deployer(settings.paths).programs()
        defined = {each.name: each for each in load_processors(settings) if isinstance(each, ProcessorDefinition)}
        found = [
            Found(command, environment, programs.get(name), _version(settings, command))
            for name, (command, environment) in asked.items()
        ]
        adopted = rediscover(found, {name: each.topology.code_version for name, each in defined.items()})
        names = {spec.name for each in defined.values() for spec in each.topology.inputs}
        topics = Topics(bootstrap_servers(settings), client_config(settings), timeout_s=TOPICS_S)
        partitions = {name: facts.partitions for name, facts in topics.describe(names).items()}
    except HoldfastError as failed:
        log.warning("registry.not_rebuilt", reason=failed.message, action=failed.action)
        return ()
    paths = settings.paths
    return tuple(each for each in adopted if _record(each, defined.get(each.processor), registry, paths, partitions))


def _version(settings: Settings, command: tuple[str, ...]) -> str | None:
    """The code version that a worker reports, or that its last failure names; None if neither is known."""
    words = dict(pairwise(command))
    processor = words.get("--processor")
    if processor is None:
        return None
    client = ProcessorClient(processor, words.get("--slot", "0"), settings.paths)
    status = client.status() or client.last_failure()
    return None if status is None else status.code_version


def _record(
    adopted: Adopted,
    definition: ProcessorDefinition | None,
    registry: Registry,
    paths: Paths,
    partitions: Mapping[str, int],
) -> bool:
    now = now_utc()
    mark = read_mark(paths, adopted.processor)
    after = 0 if mark is None else mark.generation
    if not registry.adopt_deployment(
        adopted.processor, adopted.code_version, adopted.slots, adopted.desired, now, after=after
    ):
        return False
    if definition is not None and definition.topology.code_version == adopted.code_version:
        # The release (deployed version) is recorded only if the definition has the running version. Otherwise the
        # record would have the topics and stores of another version. The next deployment records the correct release.
        target = adopted.target or definition.target
        release = adopted.release
        name = release.name if release is not None else release_id(adopted.code_version, code_of(target).digest)
        registry.releases.record(
            adopted.processor,
            name,
            code_version=adopted.code_version,
            target=target,
            folder=str(release) if release is not None and release.is_dir() else None,
            shape=as_document(shape_of(definition.topology, partitions)),
            now=now,
        )
        if adopted.told and adopted.desired == "deployed":
            registry.releases.works(adopted.processor, name, now)
    keep_mark(registry, paths, adopted.processor)
    text = f"{adopted.sentence} {adopted.action}"
    registry.record_action(ADOPT, adopted.processor, "holdfast", text, "done", now, now)
    log.warning("registry.adopted", processor=adopted.processor, version=adopted.code_version, desired=adopted.desired)
    return True
