"""Converts values of a store to instances of models and back.

Values are validated when they are set and when they are read. A value that an older version of its model wrote is
upgraded when it is read.

A stored value is the plain JSON of its model, so tables, audits and older readers can use it without the model. With
upgrades, the stored object also has the field ``_version``::

    {"currency": "EUR", "items": [], "_version": 3}      version 3: written by a model with the upgrades {1: …, 2: …}
    {"items": []}                                        version 1: written before the store had upgrades

Invariants:
    - Reading never changes the stored value. The stored value keeps its old version until the function sets it again.
    - A stored value that does not fit its model, or can't be upgraded, fails the message and stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pydantic

from holdfast.processors.engine.changelog.codecs import Codec, shown
from holdfast.processors.engine.changelog.format import (
    CODEC_BYTES,
    CODEC_JSON,
    HEAD_SIZE,
    decode_value,
    encode_json,
)
from holdfast.processors.engine.changelog.stored_values import UNFIT, not_storable
from holdfast.processors.engine.changelog.typed_codec import TYPED, decode, encode_dumped
from holdfast.processors.engine.schema.round_trip import RoundTrip, difference, lost_on_the_way
from holdfast.processors.engine.schema.types import ANY_STATE_KEY
from holdfast.processors.engine.state.methods import StateValueInvalid

#: The name of the field that has the version of a stored object.
VERSION = "_version"
_EXACT = "Give the field one exact type, so that its model reads what it wrote."


class TypedValues:
    """Validates, encodes and upgrades the values of one store by its models.

    Args:
        store: The store's name, used in errors.
        models: The model of each state key; ``"*"`` is the model of all other keys. A state key without a model has
            plain JSON values.
        upgrades: For each key of ``models``, the upgrade functions by version. The function of version n converts a
            value of version n to n + 1.
    """

    def __init__(
        self, store: str, models: Mapping[str, Any], upgrades: Mapping[str, Mapping[int, Callable[[Any], Any]]]
    ) -> None:
        self._store = store
        self._adapters: dict[str, pydantic.TypeAdapter[Any]] = {
            key: pydantic.TypeAdapter(model) for key, model in models.items()
        }
        self._trips = {key: RoundTrip(adapter) for key, adapter in self._adapters.items()}
        self._upgrades = {key: dict(made) for key, made in upgrades.items()}

    def has(self, key: str) -> bool:
        """Whether the values of this state key have a model."""
        return key in self._adapters or ANY_STATE_KEY in self._adapters

    def read(self, key: str, raw: bytes) -> Any:
        """Returns a stored value as an instance of its model.

        Raises:
            StateValueInvalid: The value does not fit its model, or can't be upgraded.
        """
        of = key if key in self._adapters else ANY_STATE_KEY
        upgrades, payload = self._upgrades.get(of), raw[HEAD_SIZE:]
        if raw[1] != CODEC_JSON:
            return self._read_other(key, of, raw)
        if upgrades is not None:
            payload = self._newest(key, decode_value(raw), upgrades)
        else:
            # Only checks the bytes: an error of this call names the stored state, and not the message, as the cause.
            decode_value(raw)
        try:
            return self._adapters[of].validate_json(payload)
        except pydantic.ValidationError as failure:
            raise self._misfit(key, failure) from failure

    def _read_other(self, key: str, of: str, raw: bytes) -> Any:
        """Returns a stored value of another codec (value format) than JSON as an instance of its model."""
        value, upgrades, adapter = decode_value(raw), self._upgrades.get(of), self._adapters[of]
        if isinstance(value, bytes) and raw[1] == CODEC_BYTES:
            raise self._unfit(key, "", f"holds {len(value)} raw bytes", "Read it with a store without a model.")
        if upgrades is not None:
            value = self._upgraded(key, value, upgrades)
        try:
            if raw[1] == TYPED.number:
                return adapter.validate_python(value)
            return adapter.validate_json(encode_json(shown(value)))
        except pydantic.ValidationError as failure:
            raise self._misfit(key, failure) from failure

    def written(self, key: str, value: Any) -> Any:
        """Returns the JSON value to store. ``value`` is an instance of the model, or input that the model accepts.

        Raises:
            StateValueInvalid: The value does not fit its model, or JSON would change it.
        """
        of = key if key in self._adapters else ANY_STATE_KEY
        adapter, decided = self._adapters[of], self._trips[of].decided
        checked = self._checked(key, adapter, value)
        try:
            made = adapter.dump_python(checked, mode="json", by_alias=True, warnings="error")
        except Exception:  # A user's own serializer may raise any exception.
            made, decided = self._doubtful(key, adapter, checked), False
        if not decided:
            self._check_back(key, adapter, checked, made)
        return self._with_version(key, of, made) if of in self._upgrades else made

    def _checked(self, key: str, adapter: pydantic.TypeAdapter[Any], value: Any) -> Any:
        """Returns the instance for a value that a function sets; raises StateValueInvalid if it does not fit."""
        try:
            return adapter.validate_python(value)
        except pydantic.ValidationError as failure:
            path, seen = _first_fault(failure)
            said = f"was set to a value that does not fit its model at {path}: {seen}"
            raise self._unfit(key, path, said, "Set an instance of the model.") from failure

    def _with_version(self, key: str, of: str, made: Any) -> Any:
        """Adds the model's version to an object that is to be stored."""
        if not isinstance(made, dict):
            said = f"has a model whose values are {type(made).__name__} in JSON; a version is a field of an object"
            raise self._unfit(key, "", said, "Use a model with fields, or take `upgrades` out.")
        return {**made, VERSION: max(self._upgrades[of]) + 1}

    def _doubtful(self, key: str, adapter: pydantic.TypeAdapter[Any], value: Any) -> Any:
        """Returns the JSON value of an instance whose strict conversion to JSON has failed.

        A field of such an instance may contain a value of another type than the model declares.
        """
        try:
            return adapter.dump_python(value, mode="json", by_alias=True, warnings="none")
        except Exception as failure:
            said = f"can't be written as JSON: {type(failure).__name__}: {failure}"
            raise self._unfit(key, "", said, "Correct the value, or the model.") from failure

    def _check_back(self, key: str, adapter: pydantic.TypeAdapter[Any], value: Any, made: Any) -> None:
        """Raises StateValueInvalid if the model reads the JSON ``made`` as another instance than ``value``."""
        action = (
            "Set what the model says. Where it can't tell a value from its JSON (`Any`, a union, a subclass), give the "
            "field one exact type."
        )
        try:
            lost = lost_on_the_way(adapter, value, encode_json(made))
        except pydantic.ValidationError as failure:
            path, seen = _first_fault(failure)
            raise self._unfit(key, path, f"could not be read again at {path}: {seen}", action) from failure
        except Exception as failure:
            said = f"could not be read again: {type(failure).__name__}: {failure}"
            raise self._unfit(key, "", said, "Correct the value, or the model.") from failure
        if lost is not None:
            raise self._unfit(key, lost[0], f"would not come back as it was set: at {lost[0]}, {lost[1]}", action)

    def _newest(self, key: str, value: Any, upgrades: Mapping[int, Callable[[Any], Any]]) -> bytes:
        """Returns a stored object as JSON, upgraded to the newest version of its model."""
        made = self._upgraded(key, value, upgrades)
        try:
            return encode_json(made)
        except (TypeError, ValueError, OverflowError, RecursionError) as failure:
            said = f"is no JSON after its upgrades: {failure}"
            raise self._unfit(key, VERSION, said, "Correct the upgrade.") from failure

    def _upgraded(self, key: str, value: Any, upgrades: Mapping[int, Callable[[Any], Any]]) -> Any:
        """Upgrades a stored object of any version to the newest version, and removes the version field."""
        if not isinstance(value, dict):
            said = f"holds {type(value).__name__} {str(value)[:80]!r}, expected an object with the field {VERSION!r}"
            raise self._unfit(key, "", said, "Give the store another name, or clear the key.")
        newest, version = max(upgrades) + 1, value.get(VERSION, 1)
        if type(version) is not int or not min(upgrades) <= version <= newest:
            older = type(version) is int and version < min(upgrades)
            said = f"holds a value of version {version!r}, expected {min(upgrades)} to {newest}"
            action = f"Add the upgrade for version {version}." if older else "Run the code that wrote it."
            raise self._unfit(key, VERSION, said, action)
        made = {name: each for name, each in value.items() if name != VERSION}
        for step in range(version, newest):
            try:
                made = upgrades[step](made)
            except Exception as failure:
                said = f"can't be upgraded from version {step}: {type(failure).__name__}: {failure}"
                raise self._unfit(key, VERSION, said, "Correct this upgrade.") from failure
        return made

    def _misfit(self, key: str, failure: pydantic.ValidationError) -> StateValueInvalid:
        path, seen = _first_fault(failure)
        said = f"holds a value that does not fit its model at {path}: {seen}"
        action = "Give `app.store` an upgrade for values of this form, or correct the model."
        return self._unfit(key, path, said, action)

    def _unfit(self, key: str, path: str, said: str, action: str) -> StateValueInvalid:
        return StateValueInvalid(
            f"Key {key!r} of store {self._store!r} {said}.", action=action, store=self._store, key=key, path=path
        )


class CodedModels(TypedValues):
    """The models of one store whose codec (value format) is not JSON. An instance is stored as bytes of this codec.

    With the codec ``typed``, the parts of an instance keep their Python types, and the model reads the parts in these
    types. With another codec, the bytes contain the JSON values of the instance.
    """

    def __init__(
        self,
        store: str,
        models: Mapping[str, Any],
        upgrades: Mapping[str, Mapping[int, Callable[[Any], Any]]],
        codec: Codec,
    ) -> None:
        super().__init__(store, models, upgrades)
        self._codec = codec

    def payload(self, key: str, value: Any) -> bytes:
        """Returns the bytes to store for an instance, or for input from which the model makes an instance.

        Raises:
            StateValueInvalid: The value does not fit its model, or the model would read another value from the bytes.
            ValueNotStorable: A part of the value has a type that the codec does not preserve.
        """
        if self._codec is not TYPED:
            made = self.written(key, value)
            return self._encoded(key, made, self._codec.encode)
        of = key if key in self._adapters else ANY_STATE_KEY
        adapter = self._adapters[of]
        checked = self._checked(key, adapter, value)
        made = adapter.dump_python(checked, mode="python", by_alias=True, warnings="none")
        payload = self._encoded(key, made, encode_dumped)
        self._check_read(key, adapter, checked, payload)
        if of not in self._upgrades:
            return payload
        return self._encoded(key, self._with_version(key, of, decode(payload)), encode_dumped)

    def _encoded(self, key: str, made: Any, encode: Callable[[Any], bytes]) -> bytes:
        try:
            return encode(made)
        except UNFIT as failure:
            raise not_storable(self._codec, made, failure, f" for key {key!r} of store {self._store!r}") from failure

    def _check_read(self, key: str, adapter: pydantic.TypeAdapter[Any], value: Any, payload: bytes) -> None:
        """Raises StateValueInvalid if the model reads the encoded ``payload`` as another instance than ``value``."""
        try:
            lost = difference(value, adapter.validate_python(decode(payload)))
        except pydantic.ValidationError as failure:
            path, seen = _first_fault(failure)
            raise self._unfit(key, path, f"could not be read again at {path}: {seen}", _EXACT) from failure
        except Exception as failure:  # A user's own validator may raise any exception.
            said = f"could not be read again: {type(failure).__name__}: {failure}"
            raise self._unfit(key, "", said, "Correct the value, or the model.") from failure
        if lost is not None:
            raise self._unfit(key, lost[0], f"would not come back as it was set: at {lost[0]}, {lost[1]}", _EXACT)


def _first_fault(failure: pydantic.ValidationError) -> tuple[str, str]:
    """Returns the path of the first validation error, and a text with the error's message and the refused value."""
    fault = failure.errors(include_url=False, include_context=False)[0]
    path = ".".join(map(str, fault["loc"])) or "the value"
    return path, f"{fault['msg']}, seen {repr(fault['input'])[:80]}"
