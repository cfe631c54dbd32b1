"""Whether a new version of a processor can use the state of the former one: a pure decision for each store.

It compares the shape of the version that worked last, recorded at its deployment, with the shape of the new version.
Nothing has to be stopped for it.

Invariants:
    - The union is closed: every store of either version gets one verdict with one sentence.
    - A change that would lose state, separate it from its keys or misread it is refused; the action says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.shape import Shape, StoreShape

#: How long an unused store should be kept, in case the former version is deployed again, seconds.
GRACE_S = 7 * 86_400.0
#: Whether workers can write a changelog from local state.
CAN_RESEED = True


class Same(msgspec.Struct, frozen=True, tag="same"):
    """The store is unchanged."""

    store: str
    refused: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        """The verdict in words, without a full stop."""
        return f"store `{self.store}` keeps its state"


class Regrouped(msgspec.Struct, frozen=True, tag="regrouped"):
    """The store's tasks have another name: local state is not found under it, so all of it is restored."""

    store: str
    was: str
    now: str
    changelog: str | None

    @property
    def refused(self) -> bool:
        """Without a changelog there is nothing to restore from."""
        return self.changelog is None

    @property
    def sentence(self) -> str:
        """The verdict in words, without a full stop."""
        how = (
            "cannot be restored, because it has no changelog"
            if self.changelog is None
            else "is restored from its changelog"
        )
        return f"tasks of store `{self.store}` were called {self.was}, now {self.now}: the store {how}"

    @property
    def action(self) -> str:
        """What to do instead."""
        return "Keep the streams that share stores unchanged, or turn changelogs on and deploy that version first."


class New(msgspec.Struct, frozen=True, tag="new"):
    """A store that the running version does not have; ``left`` is the number of records in its existing changelog."""

    processor: str
    store: str
    changelog: str | None
    left: int
    dropped: bool

    @property
    def refused(self) -> bool:
        """State of an earlier version lacks the input that was read since."""
        return self.left > 0 and not self.dropped

    @property
    def sentence(self) -> str:
        """The verdict in words, without a full stop."""
        if self.left and not self.dropped:
            return (
                f"store `{self.store}` is new to the running version, but its changelog {self.changelog} holds "
                f"up to {count_of(self.left, 'record')} of an earlier version and lacks the input read since"
            )
        deleted = f"; the records of {self.changelog} are deleted" if self.left else ""
        return f"store `{self.store}` is new and begins empty at the present input offsets{deleted}"

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            f"Delete its old state and begin empty: `holdfast apply deploy {self.processor} --drop {self.store}`. "
            f"Then fill it from the source topics: `{self.backfill}`."
        )

    @property
    def backfill(self) -> str:
        """The command that builds the store from its source topics."""
        return f"holdfast apply backfill {self.processor} --store {self.store} --from topic"


class Removed(msgspec.Struct, frozen=True, tag="removed"):
    """A store that the new version does not have; ``keep_until`` is the end of its grace, seconds since 1970."""

    processor: str
    store: str
    changelog: str | None
    keep_until: float
    dropped: bool
    refused: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        """The verdict in words, without a full stop."""
        if self.dropped:
            return f"store `{self.store}` is dropped: its changelog {self.changelog} is deleted"
        return (
            f"store `{self.store}` is no longer used. Its changelog {self.changelog} and its local state are kept for "
            "the former version; nothing deletes them automatically. Keep them for at least "
            f"{GRACE_S / 86_400:.0f} days. To delete the changelog: `holdfast apply deploy {self.processor} --drop "
            f"{self.store}`"
        )


class LooksRenamed(msgspec.Struct, frozen=True, tag="looks_renamed"):
    """A store is gone, and one of the same kind and inputs is new."""

    processor: str
    store: str
    was: str
    refused: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """The verdict in words, without a full stop."""
        return (
            f"store `{self.was}` is gone, and store `{self.store}` is new with the same kind and inputs: if the store "
            "was renamed, its state would be left behind"
        )

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            f"If it was renamed, declare it: `Application(renamed_stores={{'{self.store}': '{self.was}'}})`. If not, "
            f"delete the old store and begin empty: `holdfast apply deploy {self.processor} --drop {self.was}`."
        )


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """A store whose values the new version would misread; ``what`` has name, old and new value of each difference."""

    processor: str
    store: str
    what: tuple[tuple[str, str, str], ...]
    refused: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """The verdict in words, without a full stop."""
        differences = "; ".join(f"{name} was {was}, now {now}" for name, was, now in self.what)
        return f"store `{self.store}` changed ({differences}): the new version cannot read its state"

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            f"Give the changed store a new name (for example {self.store}-2), deploy, and fill it from the source: "
            f"`holdfast apply backfill {self.processor} --store {self.store}-2 --from topic`. The state of "
            f"`{self.store}` is kept."
        )


class InputsChanged(msgspec.Struct, frozen=True, tag="inputs_changed"):
    """A store that reads other input topics than before."""

    processor: str
    store: str
    was: tuple[str, ...]
    now: tuple[str, ...]
    refused: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """The verdict in words, without a full stop."""
        return (
            f"the inputs of store `{self.store}` were {', '.join(self.was)}, now {', '.join(self.now)}: its state "
            "holds no offsets of a new input, and would mix the results of both input sets"
        )

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            f"Give the store a new name (for example {self.store}-2), deploy, and fill it: `holdfast apply backfill "
            f"{self.processor} --store {self.store}-2 --from topic`. Or keep its inputs."
        )


class Repartitioned(msgspec.Struct, frozen=True, tag="repartitioned"):
    """A store whose input has another number of partitions than when its state was made."""

    store: str
    topic: str
    was: int
    now: int
    refused: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """The verdict in words, without a full stop."""
        return (
            f"input {self.topic} of store `{self.store}` had {self.was} partitions, now {self.now}: keys go to other "
            "partitions than their state"
        )

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            f"Use an input topic with {self.was} partitions, or build the state again under another `consumer_group`. "
            "Nothing is lost meanwhile: the running version is not touched."
        )


class ChangelogOff(msgspec.Struct, frozen=True, tag="changelog_off"):
    """A store whose changelog was turned off."""

    store: str
    changelog: str
    refused: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """The verdict in words, without a full stop."""
        return (
            f"store `{self.store}` would no longer write to {self.changelog}: its state would be lost with the disk, "
            "and the changelog would become outdated"
        )

    @property
    def action(self) -> str:
        """What to do instead."""
        return "Keep `use_changelog_topics=True`, or run without changelogs under another `consumer_group`."


class ChangelogMoved(msgspec.Struct, frozen=True, tag="changelog_moved"):
    """A store whose changelog is another topic than before."""

    store: str
    was: str
    now: str
    refused: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """The verdict in words, without a full stop."""
        return f"the changelog of store `{self.store}` was {self.was}, now {self.now}: its state would be left behind"

    @property
    def action(self) -> str:
        """What to do instead."""
        return "Keep the names of group and store; declare a renamed store with `renamed_stores`."


class ChangelogOn(msgspec.Struct, frozen=True, tag="changelog_on"):
    """A store whose changelog is turned on; ``fillable`` whether workers can fill it from local state."""

    store: str
    changelog: str
    fillable: bool

    @property
    def refused(self) -> bool:
        """A changelog that lacks records of local state would be restored as if it were complete."""
        return not self.fillable

    @property
    def sentence(self) -> str:
        """The verdict in words, without a full stop."""
        said = f"store `{self.store}` gets changelog {self.changelog}"
        if self.fillable:
            return f"{said}, which is filled from local state first"
        return f"{said}, which would lack the present local state"

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            "Leave changelogs off. Or turn them on under another `consumer_group`, which builds its state from the "
            "source topics."
        )


Verdict = (
    Same
    | Regrouped
    | New
    | Removed
    | LooksRenamed
    | Changed
    | InputsChanged
    | Repartitioned
    | ChangelogOff
    | ChangelogMoved
    | ChangelogOn
)


def compare(
    processor: str,
    before: Shape,
    after: Shape,
    *,
    dropped: Sequence[str],
    left: Mapping[str, int],
    now: float,
) -> tuple[Verdict, ...]:
    """A verdict for each store of either version: stores of the new version in their order, then removed stores.

    Args:
        processor: The processor's name.
        before: The version that worked last.
        after: The version that is to be deployed.
        dropped: Stores whose state may be deleted.
        left: Changelog topic -> number of records it holds.
        now: Seconds since 1970.
    """
    gone = [store for store in before.stores if after.store(store.name) is None]
    free = [store for store in gone if store.name not in dropped]
    verdicts: list[Verdict] = []
    for store in after.stores:
        former = before.store(store.name)
        if former is not None:
            verdicts.append(_of_store(processor, former, store, before, after))
            continue
        alike = next((each for each in free if _alike(each, store)), None)
        if alike is not None and store.name not in dropped:
            free.remove(alike)
            verdicts.append(LooksRenamed(processor, store.name, alike.name))
            continue
        held = left.get(store.changelog or "", 0)
        verdicts.append(New(processor, store.name, store.changelog, held, store.name in dropped))
    for store in gone:
        verdicts.append(Removed(processor, store.name, store.changelog, now + GRACE_S, store.name in dropped))
    return tuple(verdicts)


def _of_store(processor: str, was: StoreShape, now: StoreShape, before: Shape, after: Shape) -> Verdict:
    """The verdict on a store of both versions; of several differences, the most serious one."""
    what = tuple(
        (name, _text(old), _text(new))
        for name, old, new in (
            ("kind", was.kind, now.kind),
            ("codec", was.codec, now.codec),
            ("format", was.format_version, now.format_version),
            ("columns", was.columns, now.columns),
        )
        if old != new
    )
    if what:
        return Changed(processor, now.name, what)
    if was.inputs != now.inputs:
        return InputsChanged(processor, now.name, was.inputs, now.inputs)
    for topic in now.inputs:
        old, new = before.inputs.get(topic), after.inputs.get(topic)
        if old is not None and new is not None and old != new:
            return Repartitioned(now.name, topic, old, new)
    if was.changelog is None and now.changelog is not None:
        return ChangelogOn(now.name, now.changelog, CAN_RESEED)
    if was.changelog is not None and now.changelog is None:
        return ChangelogOff(now.name, was.changelog)
    if was.changelog != now.changelog:
        return ChangelogMoved(now.name, str(was.changelog), str(now.changelog))
    if was.task_group != now.task_group:
        return Regrouped(now.name, was.task_group, now.task_group, now.changelog)
    return Same(now.name)


def _alike(old: StoreShape, new: StoreShape) -> bool:
    return (old.kind, old.codec, old.format_version, old.columns, old.inputs) == (
        new.kind,
        new.codec,
        new.format_version,
        new.columns,
        new.inputs,
    )


def _text(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
