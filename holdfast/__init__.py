"""Holdfast: stateful Kafka processors in Python, and the whole life of their state.

Every name in ``__all__`` is public. Every other name of the package is private and may change without notice::

    from holdfast import Application, State

    app = Application(broker_address="localhost:9092", consumer_group="consumer")

Invariants:
    - A name is imported when it is first used. ``import holdfast`` loads neither Kafka nor RocksDB, so set-up and
      ``holdfast --help`` stay quick.
    - In the repository the four folders of this package are links to the folders at the top. Each module has one
      name, ``holdfast.…``; the folders refuse to be imported under another one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.infra.errors import HoldfastError
    from holdfast.processors.application import Application
    from holdfast.processors.engine.dataframe.aggregation import Collect, Count, Last, Max, Mean, Min, Sum
    from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
    from holdfast.processors.engine.dataframe.topic import Topic, TopicConfig
    from holdfast.processors.engine.state.interface import State
    from holdfast.processors.engine.topology import Topology

__all__ = [
    "Application",
    "Collect",
    "Count",
    "HoldfastError",
    "Last",
    "Max",
    "Mean",
    "Min",
    "State",
    "StreamingDataFrame",
    "Sum",
    "Topic",
    "TopicConfig",
    "Topology",
]

_HOMES = {
    "Application": "holdfast.processors.application",
    "HoldfastError": "holdfast.infra.errors",
    "State": "holdfast.processors.engine.state.interface",
    "StreamingDataFrame": "holdfast.processors.engine.dataframe.dataframe",
    "Topic": "holdfast.processors.engine.dataframe.topic",
    "TopicConfig": "holdfast.processors.engine.dataframe.topic",
    "Topology": "holdfast.processors.engine.topology",
    **dict.fromkeys(
        ("Collect", "Count", "Last", "Max", "Mean", "Min", "Sum"), "holdfast.processors.engine.dataframe.aggregation"
    ),
}


def __getattr__(name: str) -> Any:
    """A public name, imported from its module at first use.

    Raises:
        AttributeError: The package has no such name.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}; public names are {', '.join(__all__)}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
