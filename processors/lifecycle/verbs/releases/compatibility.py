"""Decides for each store whether a new version of a processor can use the state of the previous version.

The decision compares the shapes (topics and stores) of two versions: the recorded shape of the version that worked
last, and the shape of the new version. The processor may run during the comparison.

Invariants:
    - Every store of either version gets one verdict with one sentence.
    - A change is refused if state would be lost, misread, or separated from its keys. The action names the alternative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from holdfast.processors.engine.changelog.codec_table import CODECS
from holdfast.processors.engine.steps.meaning import Difference, differences, how_to_keep
from holdfast.processors.engine.topology import CALLS, KEY_VALUE, SCHEDULES, SINK, SOURCE
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.shape import Shape, StoreShape, topology_of

#: Days for which an unused store should be kept, because the previous version may be deployed again.
GRACE_DAYS = 7

#: Maps default store names of earlier Holdfast versions to a suffix. The present default name is the topic's name plus
#: this suffix.
FORMER_UNNAMED = {"default": "", "aggregate": "-aggregate"}

#: Maps the name of a difference to an attribute of ``StoreShape``. If this attribute changes, the new version would
#: misread the state.
_VALUES = {"kind": "kind", "codec": "codec", "format": "format_version", "columns": "columns"}

#: Maps kinds of windows to the form of their stored records. A step cannot read windows that were stored in another
#: form.
_KEPT_APART = {
    **{"session": "sessions", "tumbling count": "one by one", "hopping count": "messages", "sliding count": "messages"},
    "sliding": "times",
}

#: The text about a store if a changed key or rule of its steps cannot be detected: the previous version recorded none.
_NOT_RECORDED = (
    "The former version did not record the keys and rules of its steps: if they changed, its results mix both. This "
    "deployment records them."
)

_WINDOW = "window = "
#: Maps each kind of window to a text about open windows: the effect of a changed definition on them.
_OPEN_WINDOWS = dict.fromkeys(
    ("tumbling", "hopping"),
    "Windows that are open keep their start and end, and have a new grace and retention at once; new messages go into "
    "windows of the new definition",
) | {
    "session": "Sessions that are open have the new gap, grace and retention at once",
    "count": "An open window has the new count at once; windows of a new step begin at its next multiple",
    "sliding": "The new length and grace hold from the next message on, and for the messages that are stored",
}

Change = Literal[
    "same",
    "regrouped",  # the store's tasks have other names, so their local state is not found, and all state is restored
    "new",  # the previous version does not have the store
    "removed",  # the new version does not have the store
    "looks renamed",  # the store is new, but equals a removed store in kind and inputs, so it may be that store
    "misread",  # the new version would misread the stored values
    "other windows",  # the kind of window is unchanged, but its times or columns changed
    "other terms",  # the TTL, the version of values, the timers, or the schedules changed
    "other codec",  # new values are written with another codec; stored values stay readable
    "other keys",  # a step of the new version uses another key, so the stored state belongs to the wrong keys
    "other rule",  # a join or a column is computed by another rule
    "other inputs",
    "repartitioned",  # the number of partitions of an input topic has changed since the state was built
    "changelog off",
    "changelog moved",
    "changelog on",
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about one store.

    Args:
        change: The kind of difference.
        store: Name of the store.
        sentence: The verdict as a sentence.
        action: The alternative for the user; empty if the version can be deployed.
        changelog: The changelog of the store if the store is new; otherwise None.
    """

    change: Change
    store: str
    sentence: str
    action: str = ""
    changelog: str | None = None

    @property
    def refused(self) -> bool:
        """Whether the new version must not be deployed."""
        return bool(self.action)


def compare(
    processor: str, before: Shape, after: Shape, *, dropped: Sequence[str], left: Mapping[str, int]
) -> tuple[Verdict, ...]:
    """A verdict for each store of either version: stores of the new version in their order, then removed stores.

    Args:
        processor: The processor's name.
        before: The version that worked last.
        after: The version to deploy.
        dropped: Stores whose state may be deleted.
        left: Changelog topic -> number of records in it.
    """
    gone = [store for store in before.stores if after.store(store.name) is None]
    free = [store for store in gone if store.name not in dropped]
    verdicts: list[Verdict] = []
    for store in after.stores:
        former = before.store(store.name)
        if former is not None:
            verdicts.append(_of_store(processor, former, store, before, after))
            continue
        unnamed = next((each for each in free if _is_former_unnamed(each, store)), None)
        if store.restored_from is not None:
            verdicts.append(_new(processor, store, 0, dropped=False))
            continue
        if unnamed is not None and store.name not in dropped:
            verdicts.append(_was_unnamed(processor, unnamed, store))
            continue
        alike = next((each for each in free if _alike(each, store)), None)
        if alike is not None and store.name not in dropped:
            free.remove(alike)
            verdicts.append(_looks_renamed(processor, alike.name, store.name))
            continue
        verdicts.append(_new(processor, store, left.get(store.changelog or "", 0), dropped=store.name in dropped))
    return (*verdicts, *(_removed(processor, store, dropped=store.name in dropped) for store in gone))


def backfill(processor: str, store: str) -> str:
    """The command that builds a store from its source topics."""
    return f"holdfast apply backfill {processor} --store {store} --from topic"


def _looks_renamed(processor: str, was: str, now: str) -> Verdict:
    return Verdict(
        "looks renamed",
        now,
        f"Store `{was}` is gone, and store `{now}` is new with the same kind and inputs: if the store was renamed, its "
        "state would be left behind.",
        f"If it was renamed, declare it: `Application(renamed_stores={{'{now}': '{was}'}})`. If not, delete the old "
        f"store and begin empty: `holdfast apply deploy {processor} --drop {was}`.",
    )


def _was_unnamed(processor: str, was: StoreShape, now: StoreShape) -> Verdict:
    also = ""
    if was.inputs == now.inputs:
        also = f", or declare `Application(renamed_stores={{'{now.name}': '{was.name}'}})`"
    return Verdict(
        "looks renamed",
        now.name,
        f"Store `{was.name}` is gone, and store `{now.name}` is new. A step without `store=` had the first one, and "
        "now has the store of its stream: its state would be left behind.",
        f"To keep the state, write `store='{was.name}'` in these steps on {', '.join(was.inputs)}{also}. "
        f"To begin empty, delete the old store: `holdfast apply deploy {processor} --drop {was.name}`.",
    )


def _new(processor: str, store: StoreShape, left: int, *, dropped: bool) -> Verdict:
    """The verdict on a store that the previous version does not have.

    The store's changelog may exist, with records of an older version. These records lack the input that was read since
    then. So the store is refused until the user drops the changelog.
    """
    if store.restored_from is not None:
        return Verdict(
            "new", store.name, f"Store `{store.name}` is new: it is restored from topic {store.restored_from}."
        )
    if left and not dropped:
        return Verdict(
            "new",
            store.name,
            f"Store `{store.name}` is new to the running version, but its changelog {store.changelog} holds up to "
            f"{count_of(left, 'record')} of an earlier version and lacks the input read since.",
            f"Delete its old state and begin empty: `holdfast apply deploy {processor} --drop {store.name}`. Then fill "
            f"it from the source topics: `{backfill(processor, store.name)}`.",
            store.changelog,
        )
    if store.kind == SCHEDULES:
        said = f"Store `{store.name}` is new: {'; '.join(store.columns)}. The first slots are those after the deploy."
        return Verdict("new", store.name, said, changelog=store.changelog)
    if store.kind in (SOURCE, SINK):
        said = f"Store `{store.name}` is new: {'; '.join(store.columns)}. It starts with the deploy."
        return Verdict("new", store.name, said, changelog=store.changelog)
    if store.kind == CALLS:
        said = f"Store `{store.name}` is new: {'; '.join(store.columns)}. It begins empty, as it should."
        return Verdict("new", store.name, said, changelog=store.changelog)
    deleted = f"; the records of {store.changelog} are deleted" if left else ""
    said = (
        f"Store `{store.name}` is new and begins empty at the present input offsets{deleted}. To fill it from the "
        f"source topics afterwards: `{backfill(processor, store.name)}`"
    )
    return Verdict("new", store.name, said, changelog=store.changelog)


def _removed(processor: str, store: StoreShape, *, dropped: bool) -> Verdict:
    if store.restored_from is not None:
        said = (
            f"Store `{store.name}` is no longer used; topic {store.restored_from}, which has its rows, stays as it is."
        )
        return Verdict("removed", store.name, said)
    said = (
        f"Store `{store.name}` is dropped: its changelog {store.changelog} is deleted."
        if dropped
        else f"Store `{store.name}` is no longer used. Its changelog {store.changelog} and its local state are kept "
        f"for the former version; nothing deletes them automatically. Keep them for at least {GRACE_DAYS} days. To "
        f"delete the changelog: `holdfast apply deploy {processor} --drop {store.name}`."
    )
    return Verdict("removed", store.name, said)


def _of_store(processor: str, was: StoreShape, now: StoreShape, before: Shape, after: Shape) -> Verdict:
    """The verdict on a store that exists in the previous version (``was``) and in the new version (``now``).

    The verdict describes only the most serious difference.
    """
    name = now.name
    other = (
        f"Give the store a new name (for example {name}-2), deploy, and fill it: `{backfill(processor, f'{name}-2')}`"
    )
    what = "; ".join(
        f"{field} was {_text(getattr(was, attribute))}, now {_text(getattr(now, attribute))}"
        for field, attribute in _VALUES.items()
        if getattr(was, attribute) != getattr(now, attribute) and not (field == "codec" and _are_read(was, now))
    )
    windows = None if not what else _other_windows(processor, was, now) or _other_terms(was, now)
    windows = windows if not what or windows is not None else _other_work(was, now)
    if what and windows is None:
        said = f"Store `{name}` changed ({what}): the new version cannot read its state."
        return Verdict("misread", name, said, f"{other}. The state of `{name}` is kept.")
    if was.inputs != now.inputs:
        said = (
            f"The inputs of store `{name}` were {', '.join(was.inputs)}, now {', '.join(now.inputs)}: its state holds "
            "no offsets of a new input, and would mix the results of both input sets."
        )
        return Verdict("other inputs", name, said, f"{other}. Or keep its inputs.")
    for topic in now.inputs:
        old, new = before.inputs.get(topic), after.inputs.get(topic)
        if old is not None and new is not None and old != new:
            return Verdict(
                "repartitioned",
                name,
                f"Input {topic} of store `{name}` had {old} partitions, now {new}: keys go to other partitions than "
                "their state.",
                f"Use an input topic with {old} partitions, or build the state again under another `consumer_group`. "
                "Nothing is lost meanwhile: the running version is not touched.",
            )
    found = differences(was.meaning or (), now.meaning or ()) if was.meaning is not None else ()
    if keys := [each for each in found if each.is_key]:
        return _other_keys(processor, now, keys, after)
    verdict = _of_changelog(was, now)
    verdict = verdict if windows is None or verdict.change != "same" else windows
    if was.codec != now.codec:
        verdict = _other_codec(verdict, was, now)
    if found:
        verdict = _other_rule(processor, verdict, now, found, after)
    if was.meaning is None and now.meaning and not verdict.refused:
        return replace(verdict, sentence=f"{verdict.sentence} {_NOT_RECORDED}")
    return verdict


def _filling(processor: str, store: str, new: str, after: Shape) -> str:
    """The commands that fill the store ``new`` from the source topics, so that it can replace ``store``."""
    if len(topology_of(processor, after).chain_of(store)) < 2:
        return f"`{backfill(processor, new)}`"
    # Each run writes messages to a repartition topic in another order. So the store must be rebuilt together with all
    # stores of the steps before the repartition topic.
    return (
        f"`holdfast apply stop {processor}`, then `holdfast apply clear {processor} --all --rewind earliest`, which "
        "builds all state again and sends outputs again"
    )


def _other_keys(processor: str, now: StoreShape, keys: Sequence[Difference], after: Shape) -> Verdict:
    said = f"The keys of store `{now.name}` changed: {'; '.join(map(str, keys))}. Its state belongs to the former keys."
    action = (
        f"Give that step another `name`, so that it has a store of its own, and deploy. To fill that store: "
        f"{_filling(processor, now.name, 'STORE', after)}. The state of `{now.name}` is kept.{how_to_keep(keys)}"
    )
    return Verdict("other keys", now.name, said, action)


def _are_read(was: StoreShape, now: StoreShape) -> bool:
    """Whether this version of Holdfast reads values of both codecs.

    If so, a store can change its codec and keep its state.
    """
    return was.codec in CODECS and now.codec in CODECS


def _other_codec(verdict: Verdict, was: StoreShape, now: StoreShape) -> Verdict:
    """Adds a sentence to the verdict on a store: its new values are written with another codec."""
    said = (
        f"Values of store `{now.name}` were written with the codec {was.codec}, from now on with {now.codec}. Stored "
        "values stay as they are and are read with the codec that wrote them; a value has the new codec as soon as it "
        "is set again. Functions must expect values of both codecs until then."
    )
    return (
        Verdict("other codec", now.name, said)
        if verdict.change == "same"
        else replace(verdict, sentence=f"{verdict.sentence} {said}")
    )


def _other_rule(
    processor: str, verdict: Verdict, now: StoreShape, found: Sequence[Difference], after: Shape
) -> Verdict:
    """Adds a sentence to the verdict on a store: a rule (join, column) changed, and applies only to new messages."""
    said = (
        f"The rules of store `{now.name}` changed: {'; '.join(map(str, found))}. What is stored was made by the former "
        "rule and stays; new messages follow the new one. To apply it to all messages, give the step another `name`, "
        f"and fill its store: {_filling(processor, now.name, f'{now.name}-2', after)}."
    )
    if verdict.change == "same":
        return Verdict("other rule", now.name, said)
    return replace(verdict, sentence=f"{verdict.sentence} {said}")


def _other_windows(processor: str, was: StoreShape, now: StoreShape) -> Verdict | None:
    """The verdict on a store whose windows are defined differently now.

    None for other stores, and if the new version cannot read the stored windows.
    """
    kept = all(getattr(was, each) == getattr(now, each) for each in _VALUES.values() if each != "columns")
    if not kept or now.kind not in ("window", "count-window") or _way(was) != _way(now):
        return None
    choices = (
        "A new column begins where it is absent. To begin empty, clear the store first. To apply the new definition to "
        f"all messages, give the window another `name` and fill it: `{backfill(processor, f'{now.name}-2')}`."
    )
    kind = "count" if now.kind == "count-window" else _definition(now).partition(" ")[0]
    changed = f"The windows of store `{now.name}` were {_text(was.columns)}, now {_text(now.columns)}."
    return Verdict("other windows", now.name, f"{changed} {_OPEN_WINDOWS[kind]}. {choices}")


def _other_terms(was: StoreShape, now: StoreShape) -> Verdict | None:
    """The verdict on a key-value store whose TTL, timers or version of values differ now; None for other stores."""
    same = [each for each in _VALUES.values() if each != "columns" and not (each == "codec" and _are_read(was, now))]
    if now.kind != KEY_VALUE or any(getattr(was, each) != getattr(now, each) for each in same):
        return None
    return Verdict(
        "other terms",
        now.name,
        f"Store `{now.name}` was declared with {_text(was.columns)}, now with "
        f"{_text(now.columns)}. Values that are stored keep their end until they are set again, and are "
        "upgraded when they are read. Code of an older version refuses values of a newer one. Timers that no step "
        "fires stay in the store.",
    )


def _other_work(was: StoreShape, now: StoreShape) -> Verdict | None:
    """The verdict on a store whose schedules, source or calls are declared differently now; None for other stores."""
    kept = all(getattr(was, each) == getattr(now, each) for each in _VALUES.values() if each != "columns")
    if kept and now.kind == SOURCE:
        said = f"Store `{now.name}` had {_text(was.columns)}, now {_text(now.columns)}. The state that is stored stays."
        return Verdict("other terms", now.name, said)
    if kept and now.kind == CALLS:
        said = f"Store `{now.name}` had {_text(was.columns)}, now {_text(now.columns)}, also for stored answers."
        return Verdict("other terms", now.name, said)
    if not kept or now.kind != SCHEDULES:
        return None
    changed = [
        *(f"added: {_schedule(line)}" for line in now.columns if line not in was.columns),
        *(f"removed: {_schedule(line)}" for line in was.columns if line not in now.columns),
    ]
    return Verdict(
        "other terms",
        now.name,
        f"The schedules of store `{now.name}` changed; {'; '.join(changed)}. A schedule that is new, or has other "
        "slots, fires from its first slot after the deploy on. The others go on behind their last slot.",
    )


def _schedule(line: str) -> str:
    return line.removeprefix("schedule ")


def _way(store: StoreShape) -> tuple[bool, str]:
    """Two properties of a store: whether its windows are closed by key, and the form in which they are stored.

    If a new version changes one of the two, windows that are open at the deploy would never be sent.
    """
    by_key = any("closed by key" in line for line in store.columns)
    return by_key, next((way for kind, way in _KEPT_APART.items() if _definition(store).startswith(kind)), "")


def _definition(store: StoreShape) -> str:
    """The definition of a store's windows, for example ``session gap 60000 ms, …``; empty for other stores."""
    return next((line.removeprefix(_WINDOW) for line in store.columns if line.startswith(_WINDOW)), "")


def _of_changelog(was: StoreShape, now: StoreShape) -> Verdict:
    """The verdict on a store with unchanged values and inputs, whose changelog or task names may have changed."""
    name = now.name
    if was.changelog is None and now.changelog is not None:
        said = f"Store `{name}` gets changelog {now.changelog}, which is filled from local state first."
        return Verdict("changelog on", name, said)
    if now.restored_from is not None and was.restored_from is None:
        return Verdict(
            "changelog off",
            name,
            f"Store `{name}` would be restored from topic {now.restored_from}, and its former version could not be "
            f"deployed again: it restores the store from {was.changelog or 'local state'}, which would become "
            "outdated.",
            f"Give the table a new name, for example `name='{name}-2'`: it is restored from the topic at once.",
        )
    if was.changelog is not None and now.changelog is None:
        return Verdict(
            "changelog off",
            name,
            f"Store `{name}` would no longer write to {was.changelog}: its state would be lost with the disk, and the "
            "changelog would become outdated.",
            "Keep `use_changelog_topics=True`, or run without changelogs under another `consumer_group`.",
        )
    if was.changelog != now.changelog:
        return Verdict(
            "changelog moved",
            name,
            f"Store `{name}` had changelog {was.changelog}, now {now.changelog}: its state would be left behind.",
            "Keep the names of group and store; declare a renamed store with `renamed_stores`.",
        )
    if was.task_group == now.task_group:
        return Verdict("same", name, f"Store `{name}` keeps its state.")
    said = f"Tasks of store `{name}` were called {was.task_group}, now {now.task_group}: the store"
    if now.changelog is not None or now.restored_from is not None:
        log = "its changelog" if now.changelog is not None else f"topic {now.restored_from}"
        return Verdict("regrouped", name, f"{said} is restored from {log}.")
    return Verdict(
        "regrouped",
        name,
        f"{said} cannot be restored, because it has no changelog.",
        "Keep the streams that share stores unchanged, or turn changelogs on and deploy that version first.",
    )


def _alike(old: StoreShape, new: StoreShape) -> bool:
    return all(getattr(old, each) == getattr(new, each) for each in (*_VALUES.values(), "inputs"))


def _is_former_unnamed(old: StoreShape, new: StoreShape) -> bool:
    """Whether two stores are the same store, whose default name Holdfast changed.

    ``old`` has a default name of an earlier Holdfast version, ``new`` has the present default name.
    """
    names = {f"{topic}{FORMER_UNNAMED[old.name]}" for topic in old.inputs} if old.name in FORMER_UNNAMED else set()
    return new.name in names and set(new.inputs) <= set(old.inputs)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
