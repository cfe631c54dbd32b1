"""Whether a version of a processor can go on with the state that another one left: a pure decision, store by store.

Two shapes are compared: of the version that worked last, as it was recorded when it was deployed, and of the one that
is to be deployed. Nothing is looked at that has to be stopped for it.

Invariants:
    - The union is closed: every store of either version gets one verdict, and each says itself in one sentence.
    - What would lose state, part it from its keys, or read it as something else is refused, with what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from holdfast.processors.lifecycle.plans.shape import Shape, StoreShape

#: For so long a store that is no longer used should be kept, in case the former version is wanted back, seconds.
GRACE_S = 7 * 86_400.0
#: Whether workers can write a changelog from local state.
CAN_RESEED = True


class Same(msgspec.Struct, frozen=True, tag="same"):
    """The store goes on as it is."""

    store: str
    refused: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        """For people."""
        return f"store {self.store} goes on with its state"


class Regrouped(msgspec.Struct, frozen=True, tag="regrouped"):
    """The store's tasks have another name: local state is not found, and restored whole."""

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
        """For people."""
        how = (
            "has no changelog to be restored from" if self.changelog is None else "is restored whole from its changelog"
        )
        return f"tasks of store {self.store} were called {self.was}, now {self.now}: it {how}"

    @property
    def action(self) -> str:
        """What to do instead."""
        return "Keep the streams that share stores as they were, or turn changelogs on and fill them first."


class New(msgspec.Struct, frozen=True, tag="new"):
    """A store that the running version does not have; ``left`` is how many records its changelog holds already."""

    processor: str
    store: str
    changelog: str | None
    left: int
    dropped: bool

    @property
    def refused(self) -> bool:
        """State that an earlier version left does not fit the inputs any more."""
        return self.left > 0 and not self.dropped

    @property
    def sentence(self) -> str:
        """For people."""
        if self.left and not self.dropped:
            return (
                f"store {self.store} is new to the running version, but its changelog {self.changelog} holds "
                f"up to {self.left} record(s) of an earlier one, which does not know the input read since"
            )
        began = f"; what {self.changelog} held is deleted" if self.left else ""
        return f"store {self.store} is new and begins empty at the present input offsets{began}"

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            f"To begin it empty, give up what is there: holdfast apply deploy {self.processor} --drop {self.store}. To "
            f"fill it from the source topics then: {self.backfill}."
        )

    @property
    def backfill(self) -> str:
        """The command that builds it from the source."""
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
        """For people."""
        if self.dropped:
            return f"store {self.store} is given up: its changelog {self.changelog} is deleted"
        return (
            f"store {self.store} is no longer used: its changelog {self.changelog} and its local state are kept, "
            f"{GRACE_S / 86_400:.0f} days at least, for whoever wants the former version back; nothing deletes them by "
            f"itself. To give them up: --drop {self.store}"
        )


class LooksRenamed(msgspec.Struct, frozen=True, tag="looks_renamed"):
    """A store is gone, and one of the same kind and inputs is new."""

    processor: str
    store: str
    was: str
    refused: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"store {self.was} is gone and store {self.store} is new, with the same kind and inputs: if it is the same "
            "under another name, its state would be left behind"
        )

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            f"To keep its state, say so in the definition: Application(renamed_stores={{'{self.store}': "
            f"'{self.was}'}}). To begin empty and give the old one up: holdfast apply deploy {self.processor} --drop "
            f"{self.was}."
        )


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """A store whose values the new version would read as something else; ``what`` has name, old and new value."""

    processor: str
    store: str
    what: tuple[tuple[str, str, str], ...]
    refused: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """For people."""
        said = "; ".join(f"{name} was {was}, now {now}" for name, was, now in self.what)
        return f"store {self.store} is another one under the same name ({said}): its state can't be read on"

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            f"Give the changed store a name of its own (say {self.store}-2), deploy, and fill it from the source: "
            f"holdfast apply backfill {self.processor} --store {self.store}-2 --from topic. What {self.store} holds "
            "is kept meanwhile."
        )


class InputsChanged(msgspec.Struct, frozen=True, tag="inputs_changed"):
    """A store that is fed by other topics than before."""

    processor: str
    store: str
    was: tuple[str, ...]
    now: tuple[str, ...]
    refused: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"store {self.store} was fed by {', '.join(self.was)}, now by {', '.join(self.now)}: its state says "
            "nothing of the new topic's offsets, and it would hold what nobody can tell from where"
        )

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            f"Give the store a name of its own (say {self.store}-2) and fill it: "
            f"holdfast apply backfill {self.processor} --store {self.store}-2 --from topic. Or leave its streams as "
            "they were."
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
        """For people."""
        return (
            f"input {self.topic} of store {self.store} had {self.was} partitions, now {self.now}: keys go to other "
            "partitions than their state"
        )

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            f"Make a topic with {self.was} partitions for it, or build the state anew under another consumer_group. "
            "Nothing is lost meanwhile: the running version works on."
        )


class ChangelogOff(msgspec.Struct, frozen=True, tag="changelog_off"):
    """A store whose changelog was turned off."""

    store: str
    changelog: str
    refused: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"store {self.store} would no longer be kept in {self.changelog}: its state would be lost with the disk, "
            "and the changelog would hold an older one for whoever turns it on again"
        )

    @property
    def action(self) -> str:
        """What to do instead."""
        return "Leave use_changelog_topics=True, or run it without under a consumer_group of its own."


class ChangelogMoved(msgspec.Struct, frozen=True, tag="changelog_moved"):
    """A store whose changelog is another topic than before."""

    store: str
    was: str
    now: str
    refused: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """For people."""
        return f"the changelog of store {self.store} was {self.was}, now {self.now}: its state would be left behind"

    @property
    def action(self) -> str:
        """What to do instead."""
        return "Keep the name of the group and of the store; a renamed store is declared with renamed_stores."


class ChangelogOn(msgspec.Struct, frozen=True, tag="changelog_on"):
    """A store of local state alone, whose changelog is turned on; ``fillable`` whether it can be filled from that."""

    store: str
    changelog: str
    fillable: bool

    @property
    def refused(self) -> bool:
        """A changelog that lacks what local state holds would be taken for all of it."""
        return not self.fillable

    @property
    def sentence(self) -> str:
        """For people."""
        said = f"store {self.store} gets changelog {self.changelog}"
        if self.fillable:
            return f"{said}, which is filled from its local state first"
        return f"{said}, which would lack what is in local state already"

    @property
    def action(self) -> str:
        """What to do instead."""
        return (
            "Leave changelogs off; or run the processor with them under a consumer_group of its own, which builds its "
            "state anew from the source."
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
    """A verdict for each store of either version, in the order of the new one, those that are gone last.

    Args:
        processor: Whose.
        before: The version that worked last.
        after: The version that is to be deployed.
        dropped: Stores whose state is given up on purpose.
        left: Changelog topic -> how many records it holds.
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
    """The gravest thing that differs in a store of both versions."""
    what = tuple(
        (name, _said(old), _said(new))
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


def _said(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
