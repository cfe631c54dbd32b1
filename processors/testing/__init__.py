"""Kafka in memory, virtual time and failing disks, for tests of processors and simulations of the engine."""

from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.cluster import InMemoryCluster
from holdfast.processors.testing.network import Fate, Network
from holdfast.processors.testing.process import InlineProcess, Process

__all__ = ["Fate", "InMemoryCluster", "InlineProcess", "Network", "Process", "VirtualClock"]
