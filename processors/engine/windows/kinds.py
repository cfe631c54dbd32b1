"""The store of each kind of window."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import StreamTime
from holdfast.processors.engine.windows.fixed import WindowStore
from holdfast.processors.engine.windows.sessions import SessionStore
from holdfast.processors.engine.windows.sliding import SlidingStore
from holdfast.processors.engine.windows.spec import WindowKind, WindowSpec
from holdfast.processors.engine.windows.stored import MessagePlace, StoredWindows

_STORES: Mapping[WindowKind, type[StoredWindows]] = {
    "tumbling": WindowStore,
    "hopping": WindowStore,
    "session": SessionStore,
    "sliding": SlidingStore,
}


def stored_windows(spec: WindowSpec, state: StoreState, stream: StreamTime, place: MessagePlace) -> StoredWindows:
    """The windows of one step in one task."""
    return _STORES[spec.kind](spec, state, stream, place)
