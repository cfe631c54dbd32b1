"""Plan ``restore --from-file``: puts the entries of an export file back into their stores.

The entries are first written to a topic in the format of the store's changelog. Then the paused workers put the entries
into the store, in ordinary transactions. Message keys that are not in the file, and input offsets, stay unchanged.
"""

from __future__ import annotations

import shlex
from functools import partial

from msgspec.structs import replace

from holdfast.processors.engine.changelog.names import filling_topic
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans import stages
from holdfast.processors.lifecycle.plans.explanation import count_of, in_bytes
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, read_facts
from holdfast.processors.lifecycle.plans.facts.files import FileStore
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Everything, Keys, Restore
from holdfast.processors.lifecycle.verbs.refusals import (
    not_exchangeable,
    parts_of_groups,
    retracting_with,
    unknown_partitions,
    unknown_stores,
)

#: Entries written per second, assumed until a rate was measured.
ASSUMED_ENTRIES_PER_S = 30_000.0
#: Maximum number of lines that a refusal lists.
LINES_SHOWN = 10


def wanted(request: Restore, facts: Facts) -> dict[str, FileStore]:
    """The stores of the file that the request selects, with facts of their entries."""
    assert facts.file is not None
    there = facts.file.stores
    return {store: each for store, each in there.items() if not request.stores or store in request.stores}


def read(request: Restore, source: FactSource, topology: Topology) -> Facts:
    """Reads the facts for the plan, including the file's content, and how many of its keys are in the stores now."""
    assert request.file is not None
    names = {store.name for store in topology.stores}
    file, facts = source.file(request.file), read_facts(topology, source)
    found = {store: each for store, each in file.stores.items() if store in names and each.named}
    counted = {
        store: held
        for store, each in found.items()
        if (held := source.count(request.processor, store, Keys(each.named), ())) is not None
    }
    erased = source.erased_lines(request.processor, request.file)
    return replace(facts, file=file, counted=counted, erased_lines=erased)


def plan(request: Restore, facts: Facts, topology: Topology) -> Plan:
    """The plan that puts a file's entries back; refused if they don't fit the stores, or if workers can't take them."""
    assert facts.file is not None
    basis = {
        "file": facts.file.sha256,
        "topic_id": facts.topic_ids([spec.topic.name for spec in topology.changelogs]),
        "deployed": facts.deployed,
        "defined": topology.code_version,
        "slot": {each.slot: {"runs": each.alive, "paused": each.paused} for each in facts.instances},
    }
    refused = _refused(request, facts, topology)
    if refused is not None:
        return Plan(request=request, verdict=refused, basis=basis)
    found = wanted(request, facts)
    entries, keys = sum(each.entries for each in found.values()), sum(each.keys for each in found.values())
    seconds, rate = facts.seconds_for("load_file", entries, ASSUMED_ENTRIES_PER_S, "entries")
    return Plan(
        request=request,
        verdict=Ready(f"put {count_of(keys, 'key')} of {', '.join(found)} back from {facts.file.path}."),
        stages=_stages(topology.processor, facts.file.path, facts.file.sha256, found),
        findings=tuple(_finding(store, each, facts) for store, each in found.items()),
        kept=("All other keys, the input offsets and the outputs: no input is read again.",),
        deleted=tuple(_replaced(store, topology) for store in found),
        undo=_undo(topology, found),
        keys=keys,
        size_bytes=sum(each.size_bytes for each in found.values()),
        seconds=2 * seconds + 5.0,
        estimate=f"entries and bytes of the file; {rate}",
        basis=basis,
        after_kill="go on",
    )


def _undo(topology: Topology, found: dict[str, FileStore]) -> str:
    name = topology.processor
    windows = any(each.name in found and each.has_windows for each in topology.stores)
    return (
        "Put the present entries of these keys back. The result of `apply` prints the command for this, with the path "
        "of each exported file. "
        f"Keys without entries now: `holdfast apply clear {name} --key KEY`."
        + (f" Windows that do not exist now: `holdfast apply clear {name} --window START..END`." if windows else "")
    )


def _replaced(store: str, topology: Topology) -> str:
    if any(each.name == store and each.has_windows for each in topology.stores):
        return f"the present windows in store `{store}` that the file has, too; other windows stay"
    return f"the present entries of these keys in store `{store}`, if there are any"


def _refused(request: Restore, facts: Facts, topology: Topology) -> Refused | None:
    file = facts.file
    assert file is not None
    if file.problem:
        return Refused(file.problem, file.action, {"path": file.path})
    if facts.erased_lines:
        numbers = ", ".join(map(str, facts.erased_lines[:LINES_SHOWN]))
        rest = "" if len(facts.erased_lines) <= LINES_SHOWN else f" and {len(facts.erased_lines) - LINES_SHOWN} more"
        script = "".join(f"{number}d;" for number in facts.erased_lines)
        return Refused(
            f"{file.path} has entries of a key that was erased later, in line {numbers}{rest}.",
            f"Delete these lines: `sed -i '{script}' {shlex.quote(file.path)}`. Then put the file back.",
            {"path": file.path, "lines": len(facts.erased_lines)},
        )
    absent = next((store for store in request.stores if store not in file.stores), None)
    if absent is not None:
        has = ", ".join(file.stores)
        return Refused(f"{file.path} has no entries of {absent}; it has {has}.", "Name one of these stores.", {})
    together = retracting_with(topology, tuple(wanted(request, facts)))
    others = [store for store in file.stores if store not in together]
    then = f" To put the other stores back: `{' '.join(f'--store {store}' for store in others)}`." if others else ""
    if (refused := parts_of_groups(topology, tuple(wanted(request, facts)), then)) is not None:
        return refused
    for store, each in wanted(request, facts).items():
        refused = (
            unknown_stores(topology, [store])
            or unknown_partitions(topology, facts, each.partitions, [store])
            or not_exchangeable(facts, topology, store, partial(filling_topic, topology.processor, store))
        )
        if refused is not None:
            return refused
    return None


def _stages(name: str, path: str, sha256: str, found: dict[str, FileStore]) -> tuple[stages.Stage, ...]:
    made: list[stages.Stage] = []
    for store, each in found.items():
        made.append(stages.RemoveLoaded(f"remove the temporary topic of an earlier attempt for {store}", store))
        says = f"write {count_of(each.entries, 'entry', 'entries')} of {store} to a temporary topic, while {name} runs"
        made.append(stages.LoadFile(says, store, path, sha256))
    made.append(stages.PauseProcessor(f"pause {name}: it commits, and its output stops"))
    for store, each in found.items():
        says = (
            f"its owners write the present entries of {'these keys' if each.named else 'all keys'} of {store} to a "
            "file, then give the keys of the file put back their entries, in committed transactions"
        )
        selection = Keys(each.named) if each.named else Everything()
        made.append(stages.AdoptTable(says, store, keep_others=True, export=selection))
    made.append(stages.ResumeProcessor(f"resume {name} from the offsets at which it was paused"))
    made += [stages.RemoveLoaded(f"remove the temporary topic of {store}", store) for store in found]
    return tuple(made)


def _finding(store: str, each: FileStore, facts: Facts) -> str:
    held = facts.counted.get(store)
    now = "" if held is None else f"; {held.keys:,} of these keys exist now, and are replaced"
    what = f"{count_of(each.keys, 'key')}, {count_of(each.entries, 'entry', 'entries')}, {in_bytes(each.size_bytes)}"
    return f"store `{store}`: {what} in the file{now}"
