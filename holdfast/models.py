"""Classes for declaring topics, under the import path that Quix Streams uses: ``from holdfast.models import …``."""

from __future__ import annotations

from holdfast.processors.engine.formats.kafka_message import KafkaMessage
from holdfast.processors.engine.steps.topic import TimestampType, Topic, TopicConfig

__all__ = ["KafkaMessage", "TimestampType", "Topic", "TopicConfig"]
