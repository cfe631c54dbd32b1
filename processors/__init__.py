"""The engine: stateful Kafka processors with RocksDB state, changelogs and exactly-once.

from processors import Application, State
"""

from processors.application import Application
from processors.dataframe.topic import TopicConfig
from processors.state.store import State
from processors.topology import Topology

__all__ = ["Application", "State", "TopicConfig", "Topology"]
