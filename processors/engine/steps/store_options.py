"""The declaration of a store by ``app.store``: the model of its values, their upgrades, and their TTL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import msgspec

from holdfast.infra.errors import BadConfiguration
from holdfast.infra.schemas.protobuf import is_message_class
from holdfast.processors.engine.changelog.codec_table import CODECS, DEFAULT
from holdfast.processors.engine.changelog.codecs import BYTES
from holdfast.processors.engine.schema.types import ANY_STATE_KEY, INFER, SchemaInvalid
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.time.dated_values import Dating
from holdfast.processors.engine.state.time.key_times import Keeping
from holdfast.processors.engine.steps.durations import milliseconds
from holdfast.processors.engine.store_uses import TtlUse

#: A user's function that converts a stored JSON object of one version to the next version.
Upgrade = Callable[[Any], Any]
#: The functions that upgrade stored values, by the version they start from. If a store has several models: a mapping
#: from state keys to such dicts.
Upgrades = Mapping[int, Upgrade] | Mapping[str, Mapping[int, Upgrade]]
#: The value of ``ttl`` for a store in which only values that are set with their own ``ttl=`` expire.
BY_VALUE: Literal["by value"] = "by value"


class StoreInvalid(BadConfiguration):
    """The declaration of a store has an invalid argument."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The arguments of ``app.store``.

    Raises:
        StoreInvalid: An argument is invalid.
        DurationInvalid: ``ttl`` is out of range.
    """

    name: str
    model: Any = None
    upgrades: Upgrades | None = None
    ttl: int | timedelta | Literal["by value"] | None = None
    codec: str = DEFAULT
    #: One line of text for each built-in step that has this store; empty for a store of user functions.
    steps: tuple[str, ...] = ()
    #: For the store of a join: how the stored messages expire. Each message has a state key that ends with its event
    #: time.
    dating: Dating | None = field(default=None, compare=False)
    #: For the store of a step such as ``drop_duplicates``: how values expire by the event times of the messages with
    #: the same message key.
    keeping: Keeping | None = field(default=None, compare=False)
    #: Whether only stream time expires values, and the event time of the current message is ignored. Needed after
    #: ``group_by``, where a message with an older event time can follow a newer message and must still find its state.
    asked_by_older: bool = field(default=False, compare=False)
    #: Time for which values without their own ``ttl`` stay readable, in milliseconds; None means no limit.
    ttl_ms: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise StoreInvalid(
                f"`app.store` got the name {self.name!r}, expected a text.",
                action='Write, for example, `app.store("carts", model=Cart)`.',
            )
        try:
            store_prefix(self.name)
        except ValueError as failure:
            raise StoreInvalid(
                f"The store name {self.name!r} can't be used: {failure}.",
                action="Choose a name of 1 to 255 bytes.",
                store=self.name,
            ) from failure
        self._check_codec()
        if self.ttl is not None and self.ttl != BY_VALUE:
            object.__setattr__(self, "ttl_ms", milliseconds("ttl", self.ttl, least=1))
        for state_key, upgrades in self.upgrades_by_key.items():
            self._check(state_key, upgrades)
        if self.typed:
            self._check_models()

    @property
    def expires(self) -> bool:
        """Whether values of the store can expire."""
        return self.ttl is not None

    @property
    def typed(self) -> bool:
        """Whether user functions get instances of models instead of JSON values."""
        return self.model is not None and self.model != INFER

    @property
    def models(self) -> Mapping[str, Any]:
        """Maps each state key to the model of its values. The key ``"*"`` stands for all other state keys."""
        if not self.typed:
            return {}
        return self.model if isinstance(self.model, Mapping) else {ANY_STATE_KEY: self.model}

    @property
    def upgrades_by_key(self) -> Mapping[str, Mapping[int, Upgrade]]:
        """Maps each state key to the upgrades of its model. The key ``"*"`` stands for all other state keys."""
        if not self.upgrades:
            return {}
        if isinstance(self.model, Mapping):
            return self.upgrades  # type: ignore[return-value]
        return {ANY_STATE_KEY: self.upgrades}  # type: ignore[dict-item]

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions in the declaration: the upgrade functions."""
        return tuple(upgrades[version] for upgrades in self.upgrades_by_key.values() for version in sorted(upgrades))

    @property
    def use(self) -> TtlUse | None:
        """Describes how values expire; None if they do not expire."""
        return TtlUse(self.ttl_ms) if self.expires else None

    def describe(self) -> tuple[str, ...]:
        """Returns lines of text about the arguments on which state depends.

        A changed line means that the store's definition has changed.
        """
        made = [f"version of {key} = {max(upgrades) + 1}" for key, upgrades in sorted(self.upgrades_by_key.items())]
        if self.expires:
            made.append("ttl = by value" if self.ttl_ms is None else f"ttl = {self.ttl_ms} ms")
        return (*self.steps, *made)

    def _check_codec(self) -> None:
        """Raises StoreInvalid for an unknown codec, and for a model in a store with the codec ``bytes``."""
        if not isinstance(self.codec, str) or self.codec not in CODECS:
            raise StoreInvalid(
                f"`codec` of store {self.name!r} is {self.codec!r}, expected one of {', '.join(map(repr, CODECS))}.",
                action=f'Write, for example, `app.store({self.name!r}, codec="msgpack")`.',
                store=self.name,
                seen=self.codec,
            )
        if self.codec == BYTES.name and self.model is not None:
            raise StoreInvalid(
                f"Store {self.name!r} has a model and the codec 'bytes', which keeps only raw bytes.",
                action='Take `model` out, or write `codec="typed"`.',
                store=self.name,
            )

    def _check_models(self) -> None:
        """Raises StoreInvalid if JSON can't preserve the values of a model."""
        import pydantic  # pydantic is imported here, because stores without models do not need it

        from holdfast.processors.engine.schema.round_trip import RoundTrip

        for state_key, model in self.models.items():
            try:
                adapter = pydantic.TypeAdapter(model)
            except (pydantic.errors.PydanticUserError, NameError, TypeError, AttributeError) as failure:
                if isinstance(model, type) and (issubclass(model, msgspec.Struct) or is_message_class(model)):
                    raise StoreInvalid(
                        f"The model of store {self.name!r} is {model.__name__}; expected a type that pydantic reads "
                        "and writes, such as a pydantic model, a dataclass or a TypedDict.",
                        action="Write one of these, or leave `model` out and keep the fields: "
                        "`state.set('cart', msgspec.to_builtins(cart))`.",
                        store=self.name,
                    ) from failure
                # ``model`` is not a model, or it uses names that are defined later. Another check reports the error.
                continue
            try:
                RoundTrip(adapter)
            except SchemaInvalid as lost:
                of_key = "" if state_key == ANY_STATE_KEY else f" of state key {state_key!r}"
                raise StoreInvalid(
                    f"The model{of_key} of store {self.name!r}: {lost.message}", action=lost.action, store=self.name
                ) from lost

    def _check(self, state_key: str, upgrades: Any) -> None:
        said = f"`upgrades` of store {self.name!r}"
        action = "Write, for example, `app.store('carts', model=Cart, upgrades={1: add_currency, 2: split_name})`."
        if state_key not in self.models:
            raise StoreInvalid(
                f"{said} are of {state_key!r}, which has no model.", action=action, store=self.name, seen=state_key
            )
        if not isinstance(upgrades, Mapping) or not all(type(version) is int for version in upgrades):
            raise StoreInvalid(
                f"{said} are {upgrades!r}, expected functions by version.", action=action, store=self.name
            )
        versions = sorted(upgrades)
        if versions != list(range(versions[0], versions[0] + len(versions))) or versions[0] < 1:
            missing = sorted(set(range(max(1, versions[0]), versions[-1])) - set(versions))
            raise StoreInvalid(
                f"{said} are for versions {versions}, expected one for each version from the first to the newest"
                f"{f': {missing} are missing' if missing else ', from 1'}.",
                action=action,
                store=self.name,
                seen=versions,
            )
        for version, function in upgrades.items():
            if not callable(function):
                raise StoreInvalid(
                    f"{said} have {function!r} for version {version}, expected a function of the stored object.",
                    action=action,
                    store=self.name,
                )


class StoreName(str):
    """The name that ``app.store`` returns: a text that also has all store declarations of the application."""

    declared: dict[str, StoreOptions]

    @classmethod
    def of(cls, name: str, declared: dict[str, StoreOptions]) -> StoreName:
        """Returns the store's name, with the dict of all store declarations of its application."""
        made = cls(name)
        made.declared = declared
        return made


def own_store(name: str, declared: dict[str, StoreOptions]) -> str:
    """Returns the name of a step's store as a plain text.

    Raises:
        StoreInvalid: The store was declared by another application, so its model and TTL are unknown here.
    """
    if isinstance(name, StoreName) and name.declared is not declared and name not in declared:
        raise StoreInvalid(
            f"Store {str(name)!r} was declared with `app.store` of another application; its model and its TTL are not "
            "known here.",
            action=f"Declare it with this application: `app.store({str(name)!r}, ...)`.",
            store=str(name),
        )
    return str(name)


def declare(stores: dict[str, StoreOptions], options: StoreOptions, *, argument: str = "") -> None:
    """Adds the declaration of a store.

    ``argument`` is the step's argument with which the user names the store, for example ``name``. Errors show it.

    Raises:
        StoreInvalid: The store is already declared with other options.
    """
    held = stores.setdefault(options.name, options)
    if held == options:
        return
    name = options.name
    if held.steps and options.steps:
        raise StoreInvalid(
            f"Two steps have the store {name!r}: {'; '.join((*held.steps, *options.steps))}. Each needs its own.",
            action=f'Give the second one another store: `{argument}="{name}-2"`.',
            store=name,
        )
    if held.steps or options.steps:
        raise StoreInvalid(
            f"Store {name!r} is declared with `app.store`, and is the store of a built-in step: "
            f"{'; '.join(held.steps or options.steps)}.",
            action=f"Take `app.store({name!r}, ...)` out, or give the step another store.",
            store=name,
        )
    raise StoreInvalid(
        f"Store {name!r} is declared twice, with different arguments.",
        action=f"Keep one `app.store({name!r}, ...)`.",
        store=name,
    )
