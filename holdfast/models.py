"""What topics are declared with, where users of Quix Streams import it from: ``from holdfast.models import …``."""

from __future__ import annotations

from holdfast.processors.engine.formats.kafka_message import KafkaMessage
from holdfast.processors.engine.steps.topic import TimestampType, Topic, TopicConfig

__all__ = ["KafkaMessage", "TimestampType", "Topic", "TopicConfig"]
