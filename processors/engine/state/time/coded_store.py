"""The class of stores whose values have another codec than JSON.

Only ``set`` differs from ``DeclaredState``. Every read takes the codec from the stored value, so values of former
codecs stay readable. A value has the store's codec as soon as it is set again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.processors.engine.changelog.codecs import Codec
from holdfast.processors.engine.changelog.format import VALUE_VERSION, pack_head
from holdfast.processors.engine.changelog.stored_values import encode_coded
from holdfast.processors.engine.state.methods import Ttl
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.declared_store import DeclaredState

if TYPE_CHECKING:
    from holdfast.processors.engine.state.coded_models import CodedModels


class CodedState(DeclaredState):
    """One store of one task whose values are written with ``codec``.

    Args:
        plain: The store that this object replaces.
        typed: The models of its values; None without models.
        codec: The codec of the values that functions set.
    """

    __slots__ = ("_codec", "_models")

    def __init__(self, plain: StoreState, typed: CodedModels | None, codec: Codec) -> None:
        super().__init__(plain, typed)
        self._codec, self._models = codec, typed

    def set(self, key: str, value: Any, *, ttl: Ttl = None) -> None:
        """Sets the value of ``key``; raises ValueNotStorable for a value that the codec can't return unchanged."""
        models = self._models
        if models is not None and models.has(key):
            raw = pack_head(VALUE_VERSION, self._codec.number, self.timestamp_ms) + models.payload(key, value)
        else:
            where = f" for key {key!r} of store {self.name!r}"
            raw = encode_coded(self._codec, value, self.timestamp_ms, where=where)
        self._put(key, raw, ttl)
