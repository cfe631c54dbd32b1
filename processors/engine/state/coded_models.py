"""Models in a store with another codec than JSON: instances become payloads of the codec.

With the codec "typed", the parts of an instance keep their Python types, so a model reads each part from its own type.
With another codec, the payload has the JSON values of the instance. Reading is in ``TypedValues.read``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pydantic

from holdfast.processors.engine.changelog.codecs import Codec
from holdfast.processors.engine.changelog.stored_values import UNFIT, not_storable
from holdfast.processors.engine.changelog.typed_codec import TYPED, decode, encode_dumped
from holdfast.processors.engine.schema.round_trip import difference
from holdfast.processors.engine.state.typed import TypedValues, first_fault

_ACTION = "Give the field one exact type, so that its model reads what it wrote."


class CodedModels(TypedValues):
    """The models of one store, with the payloads of its codec."""

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
        """Returns the payload of an instance, or of input from which the model makes an instance.

        Raises:
            StateValueInvalid: The value does not fit its model, or its model would read another value.
            ValueNotStorable: A part of the value has a type that the codec does not return.
        """
        if self._codec is not TYPED:
            made = self.written(key, value)
            return self._encoded(key, made, self._codec.encode)
        of = self.model_of(key)
        adapter, checked = self._adapters[of], self.checked(key, value)
        made = adapter.dump_python(checked, mode="python", by_alias=True, warnings="none")
        payload = self._encoded(key, made, encode_dumped)
        self._check_read(key, adapter, checked, payload)
        if of not in self._upgrades:
            return payload
        return self._encoded(key, self.with_version(key, of, decode(payload)), encode_dumped)

    def _encoded(self, key: str, made: Any, encode: Callable[[Any], bytes]) -> bytes:
        try:
            return encode(made)
        except UNFIT as failure:
            raise not_storable(self._codec, made, failure, f" for key {key!r} of store {self._store!r}") from failure

    def _check_read(self, key: str, adapter: pydantic.TypeAdapter[Any], value: Any, payload: bytes) -> None:
        """Raises StateValueInvalid if the model reads another instance from a payload than it wrote."""
        try:
            lost = difference(value, adapter.validate_python(decode(payload)))
        except pydantic.ValidationError as failure:
            path, seen = first_fault(failure)
            raise self._unfit(key, path, f"could not be read again at {path}: {seen}", _ACTION) from failure
        except Exception as failure:  # A user's own validator may raise any exception.
            said = f"could not be read again: {type(failure).__name__}: {failure}"
            raise self._unfit(key, "", said, "Correct the value, or the model.") from failure
        if lost is not None:
            raise self._unfit(key, lost[0], f"would not come back as it was set: at {lost[0]}, {lost[1]}", _ACTION)
