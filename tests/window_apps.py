"""Builds applications with one step between the topics ``in`` and ``out``, and sends messages to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame

#: The first event time in milliseconds: a time in the past at which a window starts.
T = 1_690_000_000_000


def build(place: Callable[[StreamingDataFrame], Any], **settings: Any) -> Application:
    """An application that reads ``in``, applies the step that ``place`` adds, and writes its output to ``out``."""
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **settings)
    place(app.dataframe(app.topic("in"))).to_topic(app.topic("out"))
    return app


def send(cluster: InMemoryCluster, at: int, value: Any = 1, key: bytes | None = b"k") -> None:
    """Send one message with a JSON value; its timestamp is ``at`` milliseconds after ``T``."""
    cluster.produce("in", json.dumps(value).encode(), key, timestamp_ms=T + at)
