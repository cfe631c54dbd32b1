"""Applications with one step between a topic ``in`` and a topic ``out``, and messages for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame

#: The first event time, long ago; the start of a window.
T = 1_690_000_000_000


def build(place: Callable[[StreamingDataFrame], Any], **settings: Any) -> Application:
    """The application with this step."""
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **settings)
    place(app.dataframe(app.topic("in"))).to_topic(app.topic("out"))
    return app


def send(cluster: InMemoryCluster, at: int, value: Any = 1, key: bytes | None = b"k") -> None:
    """One message with a JSON value, ``at`` milliseconds after ``T``."""
    cluster.produce("in", json.dumps(value).encode(), key, timestamp_ms=T + at)
