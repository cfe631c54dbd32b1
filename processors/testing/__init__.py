"""Kafka in memory, time that is virtual, disks that break: for tests of processors and simulations of the engine."""

from processors.testing.clock import VirtualClock
from processors.testing.cluster import InMemoryCluster
from processors.testing.network import Fate, Network
from processors.testing.process import InlineProcess, Process

__all__ = ["Fate", "InMemoryCluster", "InlineProcess", "Network", "Process", "VirtualClock"]
