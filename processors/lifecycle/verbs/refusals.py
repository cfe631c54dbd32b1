"""Refusals that several verbs share, for example for unknown names, missing topics, or workers that do not run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.topology import CALLS, SCHEDULES, SINK, SOURCE, SourceLog, Topology
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.facts import Facts, ReleaseFacts
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import NEVER_START, Adopt, Deploy, Reposition, Request, Rollback

#: A text for plans: how to undo a backfill, which replaces the entries of a store.
UNDO_EXCHANGE = (
    "Before the exchange: `holdfast apply abandon N --reason WHY`, with the apply's number. Afterwards: put all former "
    "entries back. The result of `apply` prints the command for this, with the path of each exported file."
)


def unknown_stores(topology: Topology, stores: Sequence[str]) -> Refused | None:
    """Refuses a store name that the processor does not have."""
    known = [store.name for store in topology.stores]
    unknown = next((store for store in stores if store not in known), None)
    if unknown is None:
        return None
    near = difflib.get_close_matches(unknown, known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return Refused(
        f"{topology.processor} has no store {unknown!r}; it has {', '.join(known) or 'none'}.",
        f"Name one of its stores.{hint}",
        {"store": unknown, "processor": topology.processor},
    )


def without_windows(topology: Topology, stores: Sequence[str]) -> Refused | None:
    """Refuses a selection of windows for a store that has no windows with a start and an end."""
    store = next((each for each in topology.stores if each.name in stores and not each.has_windows), None)
    if store is None:
        return None
    has = [each.name for each in topology.stores if each.has_windows]
    what = "messages of sliding windows" if store.kind == "window" else f"{store.kind} state"
    return Refused(
        f"Store {store.name!r} of {topology.processor} has no windows that can be selected by time: it holds {what}.",
        f"Name a store with tumbling, hopping or session windows after `--store`: {', '.join(has)}."
        if has
        else "Leave `--window` out, and select keys.",
        {"store": store.name, "processor": topology.processor},
    )


def unknown_partitions(
    topology: Topology, facts: Facts, partitions: Sequence[int], stores: Sequence[str] = ()
) -> Refused | None:
    """Refuses a partition that no input of these stores has; empty ``stores`` means all inputs of the processor."""
    subs = [sub for sub in topology.subtopologies if not stores or set(stores) & set(sub.stores)]
    count = max((sub.width(facts.widths) for sub in subs), default=0)
    unknown = next((number for number in partitions if not 0 <= number < count), None)
    if unknown is None:
        return None
    of = f" of {', '.join(stores)}" if stores else ""
    return Refused(
        f"{topology.processor} has no partition {unknown}{of}; its inputs have {count}.",
        f"Name partitions from 0 to {count - 1}."
        if count
        else f"Create its topics first: `holdfast apply provision {topology.processor}`.",
        {"partition": unknown, "partitions": count},
    )


def not_as_deployed(facts: Facts, topology: Topology) -> Refused | None:
    """Refuses if the definition is not the deployed version, because starting its workers would be a deployment."""
    if facts.deployed in (None, topology.code_version):
        return None
    return Refused(
        f"{topology.processor} is defined as version {topology.code_version}, but version {facts.deployed} is "
        "deployed: this verb would start a version that did not build the state.",
        f"Deploy the defined version first: `holdfast apply deploy {topology.processor}`.",
        {"defined": topology.code_version, "deployed": facts.deployed},
    )


def deployed_release(facts: Facts) -> ReleaseFacts | None:
    """The release of the deployed version, of the releases that were read; None if there is none."""
    return next((each for each in facts.releases if each.code_version == facts.deployed), None)


def code_not_kept(facts: Facts, topology: Topology) -> Refused | None:
    """Refuses if the definition is not the deployed version, and no copy of the deployed version's code exists.

    Otherwise the deployed version can be started again, also if the project's files define another one.
    """
    name, version = topology.processor, facts.deployed
    if version in (None, topology.code_version):
        return None
    release = deployed_release(facts)
    if release is not None and release.copied:
        return None
    return Refused(
        f"{name} is deployed as version {version}, whose code was not copied, and its files define version "
        f"{topology.code_version}: version {version} can't be started again.",
        f"Check out the code of version {version} and repeat the command, or deploy the present one: `holdfast "
        f"apply deploy {name}`.",
        {"processor": name, "deployed": version, "defined": topology.code_version},
    )


def missing_topics(facts: Facts, topology: Topology) -> Refused | None:
    """Refuses the verb if any topic that the processor needs is missing."""
    absent = [spec.name for spec in topology.topics() if spec.name not in facts.topics]
    if not absent:
        return None
    return Refused(
        f"Topics are missing: {', '.join(absent)}.",
        f"Create them: `holdfast apply provision {topology.processor}`.",
        {"topic": absent[0]},
    )


def of_topic(log: SourceLog) -> Refused:
    """Refuses a change of a table that has no changelog, because it is restored from its source topic."""
    return Refused(
        f"Store `{log.store}` has no changelog of its own: it is restored from topic {log.topic}, so that only the "
        "topic changes it.",
        f"Write to {log.topic}: a record sets a row, a record without a value deletes it.",
        {"store": log.store, "topic": log.topic},
    )


def retracting_with(topology: Topology, stores: Collection[str]) -> tuple[str, ...]:
    """Returns all stores whose entries must fit those of ``stores``, because one ``group_by`` of a table uses them.

    A ``group_by`` of a table adds each row to a group, and takes a changed row out of its former group. The result also
    contains those of ``stores`` that such a ``group_by`` uses. It is empty if there are none.
    """
    marked = {store.name for store in topology.stores if store.retracts}
    chains = [chain for chain in topology.chains() if any(marked & set(stores) & set(sub.stores) for sub in chain)]
    return tuple(store for chain in chains for sub in chain for store in sub.stores if store in marked)


def parts_of_groups(topology: Topology, stores: Sequence[str], then: str = "") -> Refused | None:
    """Refuses to change only a part of the entries of stores that a ``group_by`` of a table uses.

    The entry of one store says what a row has added to a group. When the row changes, this is subtracted from the
    group's entry in another store. So the entries must fit each other. ``then`` is added to the action.
    """
    together = retracting_with(topology, stores)
    if not together:
        return None
    named = next(store for store in stores if store in together)
    others = [store for store in together if store != named]
    beside = f" beside {', '.join(others)}" if others else ""
    sources, name = _topics_of_rows(topology, together), topology.processor
    return Refused(
        f"Groups of a table's rows depend on store `{named}`{beside}: with other entries in a part of them, later "
        "changes would take rows out of groups that do not count these rows.",
        f"To take a row out, write a record with its key and without a value to {' or '.join(sources)}. To count all "
        f"rows again: `holdfast apply stop {name}`, then `holdfast apply clear {name} --all --rewind earliest`.{then}",
        {"processor": name, "store": named},
    )


def _topics_of_rows(topology: Topology, groups: Sequence[str]) -> list[str]:
    """The input topics whose records become the rows of these groups; topics of streams that only join are left out."""
    specs = {spec.topic: spec for spec in topology.repartitions}
    todo = [spec.topic for spec in topology.repartitions if spec.name in groups]
    found = set[str]()
    while todo:
        topic = todo.pop()
        if topic not in found:
            found.add(topic)
            todo += specs[topic].sources if topic in specs else ()
    return [spec.name for spec in topology.inputs if spec.name in found and spec.name not in specs]


def of_own_store(topology: Topology, store: str) -> Refused | None:
    """Refuses to build a store of schedules, a source, a sink or calls from messages: no topic has its content."""
    kind = next((each.kind for each in topology.stores if each.name == store), None)
    why = {
        SCHEDULES: "has the slots of schedules. The clock fires them",
        SOURCE: "has the state of a source. The source sets it",
        CALLS: "has answers of calls. Another system gives them",
        SINK: "has the list of what a sink has staged. The sink makes it",
    }
    if kind not in why:
        return None
    return Refused(
        f"Store `{store}` {why[kind]}, so no topic has what the store holds.",
        f"Restore it with its processor: `holdfast apply restore {topology.processor} --from changelog`. To begin "
        f"anew, clear it: `holdfast apply clear {topology.processor} --store {store} --all`.",
        {"store": store, "processor": topology.processor},
    )


def without_changelog(topology: Topology, store: str) -> Refused | None:
    """Refuses the verb for a store without a changelog."""
    if topology.changelog_of(store) is not None:
        return None
    if (log := topology.source_log_of(store)) is not None:
        return of_topic(log)
    return Refused(
        f"Store `{store}` has no changelog in the definition.",
        f"Set `use_changelog_topics=True`, deploy (`holdfast apply deploy {topology.processor}`), then retry.",
        {"store": store},
    )


def not_exchangeable(
    facts: Facts, topology: Topology, store: str, name: Callable[[], object], then: str = ""
) -> Refused | None:
    """Refuses a verb unless running workers, with the code that they run now, can exchange the entries of a store.

    To exchange means: workers change the store until it equals a changelog or a loaded topic. ``name`` is a function
    that builds the names of temporary topics, and raises an error if Kafka refuses such a name. ``then`` is added to
    the action.
    """
    refused = without_changelog(topology, store) or missing_topics(facts, topology)
    if refused is not None:
        return refused
    processor = topology.processor
    # Only running workers can exchange entries. So each worker must run, and no worker may be paused.
    if not facts.working or any(each.paused for each in facts.instances):
        return Refused(
            f"{processor} does not run in all slots, so its workers cannot adopt the new entries.",
            f"Deploy it first: `holdfast apply deploy {processor}`.{then}",
            {"processor": processor},
        )
    try:
        name()
    except HoldfastError as illegal:
        return Refused(illegal.message, illegal.action, {"store": store})
    return None


def registry_behind(request: Request, facts: Facts) -> Refused | None:
    """Refuses every verb except ``adopt`` while Holdfast's registry lacks the processor's newest deployment."""
    if facts.behind is None or isinstance(request, Adopt):
        return None
    return Refused(facts.behind.sentence, f"`{facts.behind.action}`", {"processor": facts.processor})


def never_worked(request: Request, facts: Facts) -> Refused | None:
    """Refuses to start the recorded version if it never worked, but another version did.

    An interrupted deploy can leave such a record in Holdfast's registry. The workers may then still run the previous
    version. A start would replace these workers by workers of the recorded version, which may not start.
    """
    name, worked = facts.processor, "" if facts.deployment is None else facts.deployment.worked_instead
    if not worked or isinstance(request, (Deploy, Rollback, Reposition, *NEVER_START)):
        return None  # `reposition` replaces no worker, because it is refused while a worker runs
    if any(each.alive and each.code_version == facts.deployed for each in facts.instances):
        return None
    return Refused(
        f"Version {facts.deployed} of {name} is recorded by a deploy that has not ended well: it never worked, and "
        f"version {worked} worked last.",
        f"Wait for the deploy if it runs. Otherwise repeat it: `holdfast apply deploy {name}`. If it fails, version "
        f"{worked} runs again.",
        {"processor": name, "deployed": facts.deployed, "worked": worked},
    )


def held_elsewhere(request: Request, facts: Facts) -> Refused | None:
    """Refuses a verb that may start workers while the group has workers of another installation.

    The workers of both installations would compete for partitions, and each installation would have only a part of the
    state.
    """
    if not facts.strangers or isinstance(request, NEVER_START):
        return None
    name = facts.processor
    return Refused(
        shared_with(name, facts.strangers),
        f"Stop {name} there (`holdfast apply stop {name}` in that installation), then repeat the command. Or give the "
        "application here another `consumer_group`.",
        {"processor": name, "members": facts.members, "strangers": "; ".join(facts.strangers)},
    )


def shared_with(processor: str, strangers: Sequence[str]) -> str:
    """What happens if workers start here while another installation has workers in the same group, as text."""
    return (
        f"Group {processor} has {count_of(len(strangers), 'member')} that no worker of this installation is: "
        f"{'; '.join(strangers)}. Workers that start here would share its partitions."
    )
