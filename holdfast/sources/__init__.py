"""Sources: the base classes, and the sources that ship with Holdfast.

The base classes have the import path that Quix Streams uses: ``from holdfast.sources import Source``. The other names
are imported at their first use, because they need libraries that not every worker needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.processors.engine.connectors import ExternalSystem
from holdfast.processors.engine.sources.source import (
    ClientConnectFailureCallback,
    ClientConnectSuccessCallback,
    Source,
    StatefulSource,
)

if TYPE_CHECKING:
    from holdfast.processors.sources.event_server import HttpLimits
    from holdfast.processors.sources.file_rows import CsvFormat
    from holdfast.processors.sources.file_source import FileSource
    from holdfast.processors.sources.http_source import HttpSource
    from holdfast.processors.sources.sql_source import SqlSource

__all__ = [
    "ClientConnectFailureCallback",
    "ClientConnectSuccessCallback",
    "CsvFormat",
    "ExternalSystem",
    "FileSource",
    "HttpLimits",
    "HttpSource",
    "Source",
    "SqlSource",
    "StatefulSource",
]

#: Public name -> its module.
_HOMES = {
    "CsvFormat": "file_rows",
    "FileSource": "file_source",
    "HttpLimits": "event_server",
    "HttpSource": "http_source",
    "SqlSource": "sql_source",
}


def __getattr__(name: str) -> Any:
    """Imports a shipped source at its first use.

    Raises:
        AttributeError: The package has no such name.
        ExtraMissing: The source needs libraries of an extra that is not installed.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast.sources' has no attribute {name!r}; it has {', '.join(__all__)}")
    from holdfast.infra.installation import naming_extras

    with naming_extras():
        value = getattr(importlib.import_module(f"holdfast.processors.sources.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
