"""The engine: stateful Kafka processors with RocksDB state, changelogs and exactly-once.

from holdfast import Application, State
"""

from holdfast.processors.application import Application
from holdfast.processors.engine.dataframe.aggregation import Collect, Count, Last, Max, Mean, Min, Sum
from holdfast.processors.engine.dataframe.topic import TopicConfig
from holdfast.processors.engine.state.store import State
from holdfast.processors.engine.topology import Topology

__all__ = [
    "Application",
    "Collect",
    "Count",
    "Last",
    "Max",
    "Mean",
    "Min",
    "State",
    "Sum",
    "TopicConfig",
    "Topology",
]
