"""Maps each kind of window to the class that stores such windows."""

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
    """Returns the object that stores a step's windows in one task. Its class depends on the kind of the windows."""
    return _STORES[spec.kind](spec, state, stream, place)
