"""Topics, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.engine.steps.topic import Topic, TopicConfig

__all__ = ["Topic", "TopicConfig"]
