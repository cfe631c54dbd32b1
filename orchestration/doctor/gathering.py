"""Reads the values that ``holdfast doctor`` judges: of machine, Kafka cluster, registry, catalog, Dagster, processors.

Invariants:
    - This module only reads. It creates, migrates and starts nothing.
    - If the values of one check can't be read, the error becomes a finding (line of the report). The remaining checks
      still run.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.infra.errors import HoldfastError
from holdfast.infra.installation import EXTRAS, missing_in
from holdfast.infra.settings import Settings, load_settings, unknown_variables
from holdfast.infra.setup.java import OLDEST_VERSION, NoJava, find_java
from holdfast.infra.system.ports import can_bind
from holdfast.infra.system.privacy import GROUP_UMASK, UMASK
from holdfast.orchestration.doctor import judging
from holdfast.orchestration.doctor.judging import Finding

if TYPE_CHECKING:
    from holdfast.processors.engine.topology import Topology

#: Timeout of a request to a broker, seconds.
WAIT_S = 5.0
_MEMINFO = Path("/proc/meminfo")


def examine() -> Iterator[Finding]:
    """Yields every finding, in the order in which the report prints the findings."""
    yield judging.judge_python(sys.version_info[:3])
    yield from judging.judge_extras(
        {extra: [each for each in modules if not _installed(each)] for extra, (_, modules) in EXTRAS.items()}
    )
    try:
        settings = load_settings()
    except HoldfastError as failure:
        yield judging.failed("settings", failure)
        return
    yield from judging.judge_settings(unknown_variables(os.environ))
    yield from _machine(settings)
    topologies: list[Topology] = []
    yield from _tried("processors", lambda: _processors(settings, topologies))
    yield from _tried("broker", lambda: _cluster(settings, topologies))
    yield from _tried("registry", lambda: _registry(settings))
    yield from _tried("warehouse", lambda: _warehouse(settings))
    yield from _tried("dagster", lambda: _dagster(settings))


def _tried(name: str, check: Callable[[], Sequence[Finding]]) -> Sequence[Finding]:
    """Calls ``check`` and returns its findings; if it raises an error, returns one failed finding about the error."""
    try:
        return check()
    except HoldfastError as failure:
        return [judging.failed(name, failure)]
    except ImportError as failure:
        missing = missing_in(failure)
        if missing is None:
            raise
        return [judging.failed(name, missing, verdict="warn")]


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _machine(settings: Settings) -> Iterator[Finding]:
    embedded = settings.kafka.bootstrap_servers is None
    try:
        java = find_java()
        yield judging.judge_java(java.version, java.source, needed=embedded, oldest=OLDEST_VERSION)
    except NoJava as failure:
        yield judging.judge_java(None, failure.message.rstrip("."), needed=embedded, oldest=OLDEST_VERSION)
    yield judging.judge_memory(_available())
    home = settings.paths.home
    there = next(each for each in (home, *home.absolute().parents) if each.is_dir())
    room = shutil.disk_usage(there)
    yield judging.judge_disk(room.free, room.total, settings.upkeep.room_min_percent)
    found = home.stat() if home.is_dir() else None
    yield judging.judge_home(
        None if found is None else stat.S_IMODE(found.st_mode),
        None if found is None else found.st_uid,
        os.getuid(),
        writable=os.access(there, os.W_OK | os.X_OK),
        umask=GROUP_UMASK if settings.group_access else UMASK,
    )


def _available() -> int | None:
    """Bytes of memory that new processes can use: the smaller value of machine and control group. None if unknown."""
    limits = []
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        limits.append(int(lines["MemAvailable"].split()[0]) << 10)
    except (OSError, KeyError, ValueError):
        return None
    group = Path("/sys/fs/cgroup")
    # Without a memory limit of the control group, or without control groups (v2), the file `memory.max` is missing or
    # has no number.
    with suppress(OSError, ValueError):
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return max(0, min(limits))


def _processors(settings: Settings, topologies: list[Topology]) -> list[Finding]:
    from holdfast.processors.application.broken_definition import BrokenDefinition
    from holdfast.processors.application.registration import load_processors

    found = []
    for each in load_processors(settings):
        if isinstance(each, BrokenDefinition):
            action = "Correct the module, or its name in `HOLDFAST_PROCESSORS`."
            found.append(
                Finding(f"processor {each.target}", "fail", each.sentence, "a module with an application", action)
            )
        else:
            topologies.append(each.topology)
            found.append(
                Finding(f"processor {each.name}", "ok", f"{each.target}, version {each.topology.code_version}")
            )
    return found or [
        Finding("processors", "warn", "none", "one or more", "Name them in `HOLDFAST_PROCESSORS` (docs/settings.md).")
    ]


def _cluster(settings: Settings, topologies: Sequence[Topology]) -> list[Finding]:
    from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
    from holdfast.infra.kafka.clients.rights import principal_of
    from holdfast.infra.kafka.embedded.broker import running_broker
    from holdfast.infra.kafka.inspection.cluster_facts import read_cluster
    from holdfast.infra.kafka.topics.topics import Topics

    if settings.kafka.bootstrap_servers is None and running_broker(settings.paths.kafka) is None:
        action = "Start the embedded broker with `holdfast up`, or set `HOLDFAST_KAFKA__BOOTSTRAP_SERVERS`."
        return [Finding("broker", "warn", "the embedded broker does not run", "a broker that answers", action)]
    bootstrap, config = bootstrap_servers(settings), client_config(settings)
    topics = Topics(bootstrap, config, timeout_s=WAIT_S)
    topics.ping()
    names = [spec.name for each in topologies for spec in each.topics()]
    facts = read_cluster(bootstrap, config, names, [each.processor for each in topologies], timeout_s=WAIT_S)
    found = list(judging.judge_broker(facts, int(time.time() * 1000)))
    found += [judging.judge_rights(each, facts, principal_of(config)) for each in topologies]
    found += [judging.judge_topic(each, facts.brokers) for each in topics.describe(names).values()]
    return found


def _registry(settings: Settings) -> list[Finding]:
    from holdfast.infra.database.registry import Registry

    if settings.registry_url is None and not settings.paths.registry.exists():
        return [Finding("registry", "ok", "does not exist yet; `holdfast up` creates it")]
    registry = Registry(settings.registry)
    try:
        count, ahead_s = len(registry.deployments()), registry.clock_ahead_s()
    finally:
        registry.close()
    return [Finding("registry", "ok", f"answers; {count} deployment(s)"), judging.judge_database_clock(ahead_s)]


def _warehouse(settings: Settings) -> list[Finding]:
    from holdfast.infra.warehouse.catalog import existing_catalog
    from holdfast.infra.warehouse.errors import TableUnknown

    try:
        count = len(existing_catalog(settings).list_namespaces())
    except TableUnknown:
        return [Finding("warehouse", "ok", "has no tables yet")]
    return [Finding("warehouse", "ok", f"the catalog answers; tables of {count} processor(s)")]


def _dagster(settings: Settings) -> list[Finding]:
    from holdfast.orchestration.host import local
    from holdfast.orchestration.host.dagster_config import check_dagster_config, run_limit

    web = local.running(settings, local.WEBSERVER)
    found = [
        judging.judge_port(
            local.PORT, free=can_bind(local.PORT), ours=web is not None and f":{local.PORT}" in str(web.url)
        )
    ]
    if settings.paths.dagster.is_dir():
        check_dagster_config(settings.paths.dagster, local.WORKSPACE)
        found.append(Finding("dagster", "ok", "its configuration can be used"))
        found.append(judging.judge_queue(run_limit(settings.paths.dagster)))
    else:
        found.append(Finding("dagster", "ok", "has no instance yet; `holdfast up` creates it"))
    daemon = local.running(settings, local.DAEMON)
    runs = web is not None and daemon is not None
    if settings.paths.dagster.is_dir() and not runs:
        lacks = [name for name, each in (("webserver", web), ("daemon", daemon)) if each is None]
        seen = f"{' and '.join(lacks)} of this home: not running"
        found.append(Finding("dagster services", "warn", seen, "both run", "Start them: `holdfast up`."))
    return found
