"""Judges the values that ``holdfast doctor`` has read: each function returns findings (lines of the report).

All functions are pure: they read and change nothing.

Invariants:
    - Every finding with the verdict ``warn`` or ``fail`` has an action for the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.infra.errors import HoldfastError
from holdfast.infra.installation import EXTRAS, install_line
from holdfast.infra.kafka.clients.rights import Right
from holdfast.infra.kafka.inspection.cluster_facts import BROKER_FROM, ClusterFacts, dotted, is_too_old
from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine.topology import Topology

Verdict = Literal["ok", "warn", "fail"]

#: Oldest and newest version of Python with which Holdfast is tested.
PYTHON_FROM, PYTHON_TO = (3, 11), (3, 14)
#: Available memory, bytes. Below the first value, which one worker needs, the finding fails. Below the second value,
#: which broker, Dagster and Spark need together, the finding warns.
MEMORY_LEAST, MEMORY_ENOUGH = 1 << 30, 3 << 30
#: Minimum free disk space, bytes; with less space the finding fails.
DISK_LEAST = 1 << 30
#: Limits for the difference of two clocks, in seconds: a warning above the first, a failure above the second. Kafka
#: refuses records with a timestamp an hour ahead; leases tolerate one minute.
SKEW_S, SKEW_MAX_S = 2.0, 30.0
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: the observed value, the expected value, and an action (required unless all is ``ok``)."""

    name: str
    verdict: Verdict
    seen: str
    expected: str = ""
    action: str = ""


def judge_python(version: tuple[int, int, int]) -> Finding:
    """Judges the version of the Python interpreter, for example ``(3, 12, 4)``."""
    seen, expected = ".".join(map(str, version)), f"{dotted(PYTHON_FROM)} to {dotted(PYTHON_TO)}"
    if version[:2] < PYTHON_FROM:
        return Finding("python", "fail", seen, expected, f"Install Python {dotted(PYTHON_TO)}, and Holdfast in it.")
    if version[:2] > PYTHON_TO:
        return Finding("python", "warn", seen, expected, "Use one of these versions: this one is not tried.")
    return Finding("python", "ok", seen, expected)


def judge_java(version: int | None, source: str, *, needed: bool, oldest: int) -> Finding:
    """Judges the version of Java; None means that no Java was found.

    ``source`` says where Java was found or searched. ``needed`` is True if the embedded broker needs Java.
    """
    expected = f"{oldest} or newer"
    if version is not None:
        return Finding("java", "ok", f"{version}, from {source}", expected)
    verdict: Verdict = "fail" if needed else "warn"
    action = f"Install a Java {oldest}, set `JAVA_HOME`, or run `{install_line('spark')}`, which brings one."
    return Finding("java", verdict, f"none ({source})", expected, action)


def judge_memory(available: int | None) -> Finding:
    """Judges the memory that new processes can use. ``available`` is bytes; None if the system does not report it."""
    expected = f"{MEMORY_ENOUGH // _GIB} GiB for broker, Dagster and Spark on this machine"
    if available is None:
        return Finding("memory", "warn", "unknown", expected, "Check the memory of this machine by hand.")
    seen = f"{available / _GIB:.1f} GiB available"
    if available < MEMORY_LEAST:
        return Finding("memory", "fail", seen, expected, "End other programs, or use a larger machine.")
    if available < MEMORY_ENOUGH:
        action = "Run broker or Spark elsewhere (`HOLDFAST_KAFKA__BOOTSTRAP_SERVERS`, `HOLDFAST_SPARK__MASTER`)."
        return Finding("memory", "warn", seen, expected, action)
    return Finding("memory", "ok", seen, expected)


def judge_disk(free: int, total: int, min_percent: float) -> Finding:
    """Judges the free and total space on the disk of the home folder, bytes; ``min_percent`` must be free."""
    percent = 100 * free / total if total else 0.0
    seen, expected = f"{free / _GIB:.1f} GiB free ({percent:.0f} %)", f"{min_percent:g} % and 1 GiB or more"
    if free < DISK_LEAST:
        return Finding("disk", "fail", seen, expected, "Make room: `holdfast status --sizes` lists what uses it.")
    if percent < min_percent:
        return Finding("disk", "warn", seen, expected, "Make room: `holdfast status --sizes` lists what uses it.")
    return Finding("disk", "ok", seen, expected)


def judge_port(port: int, *, free: bool, ours: bool) -> Finding:
    """Judges the port of Dagster's UI. ``ours`` says that this home folder's webserver already uses the port."""
    name, expected = f"port {port}", "free, or used by this home's webserver"
    if ours:
        return Finding(name, "ok", "used by this home's webserver", expected)
    if free:
        return Finding(name, "ok", "free", expected)
    action = "Nothing: `holdfast up` takes another port. To choose one: `holdfast up --port 3001`."
    return Finding(name, "warn", "used by another program", expected, action)


def judge_queue(limit: int) -> Finding:
    """Judges Dagster's limit for all concurrent runs.

    The limit should be -1 (no limit), because each lane of the queue (group of runs, such as recovery) has a separate
    limit.
    """
    expected = "max_concurrent_runs: -1 in dagster.yaml, and a limit for each lane of the queue"
    if limit == -1:
        return Finding("run queue", "ok", "recovery waits for no other runs", expected)
    seen = f"recovery, stop and dry runs wait while {limit} other runs are in progress"
    action = (
        "Take `concurrency` from infra/dagster/local.yaml. Or delete the file, then run `holdfast down` and "
        "`holdfast up`."
    )
    return Finding("run queue", "warn", seen, expected, action)


def judge_home(mode: int | None, owner: int | None, me: int, *, writable: bool, umask: int) -> Finding:
    """Judges mode and owner of the home folder; ``mode`` and ``owner`` are None if the folder does not exist yet.

    ``me`` is the user id of this process; ``umask`` has the permission bits that the folder must not have.
    """
    expected = "a folder of this user that others can't enter"
    if mode is None:
        verdict: Verdict = "ok" if writable else "fail"
        action = "" if writable else "Set `HOLDFAST_HOME` to a folder that this user can create."
        return Finding("home", verdict, "does not exist yet" if writable else "can't be created", expected, action)
    seen = f"mode {mode:04o}, user {owner}"
    if not writable:
        return Finding("home", "fail", f"{seen}, not writable", expected, "Correct its rights, or set `HOLDFAST_HOME`.")
    if owner != me:
        return Finding(
            "home", "warn", seen, expected, f"Run Holdfast as user {owner}, or give the folder to user {me}."
        )
    if mode & umask:
        return Finding(
            "home", "warn", seen, expected, "Run any command, as `holdfast status`: it takes the rights away."
        )
    return Finding("home", "ok", seen, expected)


def judge_extras(missing: Mapping[str, Sequence[str]]) -> tuple[Finding, ...]:
    """Judges each optional dependency group (extra); ``missing`` maps an extra to its missing Python modules."""
    found = []
    for extra, modules in missing.items():
        name = f"extra {extra}"
        if not modules:
            found.append(Finding(name, "ok", "installed"))
            continue
        why = EXTRAS[extra][0]
        action = f"If you need it, run `{install_line(extra)}`. {why}."
        found.append(Finding(name, "warn", f"without {', '.join(modules)}", "installed", action))
    return tuple(found)


def judge_settings(unknown: Mapping[str, str | None]) -> tuple[Finding, ...]:
    """Judges environment variables that begin with ``HOLDFAST_`` but are no setting.

    ``unknown`` maps each variable to the most similar name of a setting, or None.
    """
    if not unknown:
        return (Finding("settings", "ok", "no unknown variable"),)
    return tuple(
        Finding(
            f"setting {name}",
            "warn",
            "unknown: it has no effect",
            "a name of docs/settings.md",
            f"Rename it to `{near}`." if near else f"Remove `{name}`.",
        )
        for name, near in unknown.items()
    )


def judge_broker(facts: ClusterFacts, now_ms: int) -> tuple[Finding, ...]:
    """Judges the version and the clock of a Kafka cluster that answers; ``now_ms`` is this machine's time."""
    found = [Finding("broker", "ok", f"{facts.brokers} broker(s) answer")]
    expected = f"{dotted(BROKER_FROM)} or newer"
    if facts.version is None:
        action = "Allow `DescribeConfigs` on the cluster to see it (docs/rights.md)."
        found.append(Finding("broker version", "warn", "unknown", expected, action))
    else:
        old = is_too_old(facts.version)
        seen = f"{facts.version}{'.0 or newer' if facts.version == '4' else ''}"
        action = "Upgrade the brokers: they lack calls that Holdfast needs." if old else ""
        found.append(Finding("broker version", "fail" if old else "ok", seen, expected, action))
    expected = f"at most {SKEW_S:g} s ahead of this machine"
    if facts.stamp_ms is None:
        found.append(Finding("broker clock", "ok", "unknown: the brokers wrote no time yet that can be read", expected))
    else:
        ahead_s = (facts.stamp_ms - now_ms) / 1000
        seen = f"{ahead_s:.1f} s ahead" if ahead_s > SKEW_S else "not ahead"
        found.append(_clock("broker clock", ahead_s, seen, expected))
    return tuple(found)


def judge_database_clock(ahead_s: float) -> Finding:
    """Judges the clock of the registry's database; ``ahead_s`` is its difference to this machine (negative: behind)."""
    return _clock("registry clock", abs(ahead_s), f"{ahead_s:+.1f} s", f"within {SKEW_S:g} s of this machine")


def _clock(name: str, off_s: float, seen: str, expected: str) -> Finding:
    if off_s <= SKEW_S:
        return Finding(name, "ok", seen, expected)
    verdict: Verdict = "fail" if off_s > SKEW_MAX_S else "warn"
    return Finding(name, verdict, seen, expected, "Let both machines take their time from one server (NTP).")


def judge_rights(topology: Topology, facts: ClusterFacts, principal: str) -> Finding:
    """Judges whether this client has all Kafka rights (ACLs) that a worker of the processor needs (docs/rights.md)."""
    name, expected = f"rights of {topology.processor}", "those of docs/rights.md"
    needed = rights_of(topology)
    lacks, unknown = [], 0
    for right in needed:
        allowed = facts.allowed.get((right.kind, right.name))
        if allowed is None:
            unknown += 1
        elif right.operation.upper() not in {each.replace("_", "") for each in allowed}:
            lacks.append(right)
    if lacks:
        seen = ", ".join(f"no {each.operation} on {each.resource}" for each in lacks)
        rules = "; ".join(f"`{each.rule(principal)}`" for each in lacks)
        return Finding(name, "fail", seen, expected, f"Add these rules: {rules}")
    seen = f"all of {len(needed)}" if not unknown else f"{len(needed) - unknown} of {len(needed)}, the others unknown"
    return Finding(name, "ok", seen, expected)


def rights_of(topology: Topology) -> tuple[Right, ...]:
    """The Kafka rights (ACLs) that a worker needs on its existing topics and on its consumer group."""
    logs = [spec.topic.name for spec in topology.changelogs]
    reads = [*(spec.name for spec in topology.inputs), *logs]
    rights = [Right("Read", "topic", each) for each in dict.fromkeys(reads)]
    rights += [Right("Write", "topic", each) for each in dict.fromkeys(topology.written())]
    rights += [Right("DescribeConfigs", "topic", spec.name) for spec in topology.topics()]
    return (*dict.fromkeys(rights), Right("Read", "group", topology.processor))


def judge_topic(topic: TopicFacts, brokers: int) -> Finding:
    """Judges whether a topic survives the loss of one broker without lost records and without refused writes."""
    least = topic.config.get("min.insync.replicas", "1")
    name, seen = f"topic {topic.name}", f"replication {topic.replication}, min.insync.replicas {least}"
    if brokers < 2:
        return Finding(name, "ok", f"{seen}, on one broker", "one copy on one broker")
    expected = f"{min(3, brokers)} copies, of which 2 acknowledge"
    if topic.replication < 2:
        action = "Reassign it with more replicas (`kafka-reassign-partitions.sh`): a lost broker loses its records."
        return Finding(name, "fail", seen, expected, action)
    if not least.isdigit() or int(least) < 2:
        action = "Set its `min.insync.replicas` to 2: an acknowledged record may be on one broker only."
        return Finding(name, "warn", seen, expected, action)
    if int(least) >= topic.replication:
        action = "Add a replica, or lower `min.insync.replicas`: when one broker stops, nothing can be written."
        return Finding(name, "warn", seen, expected, action)
    return Finding(name, "ok", seen, expected)


def failed(name: str, failure: HoldfastError, *, verdict: Verdict = "fail") -> Finding:
    """A finding (line of the report) for a check whose values could not be read; its texts come from the error."""
    return Finding(name, verdict, failure.message, "an answer", failure.action)


def worst(findings: Sequence[Finding]) -> Verdict:
    """The most serious verdict of all findings (report lines): ``fail``, otherwise ``warn``, otherwise ``ok``."""
    seen = {each.verdict for each in findings}
    return "fail" if "fail" in seen else "warn" if "warn" in seen else "ok"
