"""The place of the current message, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.engine.dataframe.message_context import (
    MessageContext,
    MessageContextNotSetError,
    message_context,
)

__all__ = ["MessageContext", "MessageContextNotSetError", "message_context"]
