"""The store of each kind of window."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.processors.engine.dataframe.session_store import SessionStore
from holdfast.processors.engine.dataframe.sliding_store import SlidingStore
from holdfast.processors.engine.dataframe.stored_windows import MessagePlace, StoredWindows
from holdfast.processors.engine.dataframe.window_spec import WindowKind, WindowSpec
from holdfast.processors.engine.dataframe.window_store import WindowStore
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.stream_time import StreamTime

_STORES: Mapping[WindowKind, type[StoredWindows]] = {
    "tumbling": WindowStore,
    "hopping": WindowStore,
    "session": SessionStore,
    "sliding": SlidingStore,
}


def stored_windows(spec: WindowSpec, state: StoreState, stream: StreamTime, place: MessagePlace) -> StoredWindows:
    """The windows of one step in one task."""
    return _STORES[spec.kind](spec, state, stream, place)
