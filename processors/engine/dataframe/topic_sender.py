"""Sends messages to an output topic outside of a stream's steps, with the checks of ``to_topic``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.processors.engine.dataframe.plain_loop import UNWRITABLE, CurrentMessage, compile_steps, unwritable
from holdfast.processors.engine.formats.serialization import written_headers
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.outbox import Output
from holdfast.processors.engine.steps.topic import Topic


def topic_sender(
    topic: Topic, emit: Callable[[Output], None], record_bytes_max: Mapping[str, int], times: RecordTimes
) -> Callable[[Any, Any, int, Any], None]:
    """Returns a function that sends one message: value, key, timestamp in ms since 1970, and headers.

    The function raises the errors of ``to_topic``: ValueUnwritable, RecordTooLarge, RecordTimeRefused.
    """
    current = CurrentMessage()
    steps = Node("source", children=[Node("to_topic", topic=topic)])
    run = compile_steps(steps, {}, current, emit, record_bytes_max, times)

    def send(value: Any, key: Any, timestamp_ms: int, headers: Any) -> None:
        try:
            current.key = None if key is None else topic.serialize_key(key)
        except UNWRITABLE as failure:
            raise unwritable("key", key, topic.name, failure) from failure
        run(value, None, timestamp_ms, written_headers(headers, topic.name))

    return send
