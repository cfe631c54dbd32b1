"""The engine: stateful Kafka processors with RocksDB state, changelogs and exactly-once.

from processors import Application, State
"""

from processors.application import Application
from processors.dataframe.aggregation import Collect, Count, Last, Max, Mean, Min, Sum
from processors.dataframe.topic import TopicConfig
from processors.state.store import State
from processors.topology import Topology

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
