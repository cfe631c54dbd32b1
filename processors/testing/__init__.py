"""Kafka in memory and virtual time, for tests of processors. The engine's simulation tests use this package, too."""

from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.cluster import InMemoryCluster
from holdfast.processors.testing.network import Fate, Network
from holdfast.processors.testing.process import InlineProcess, Process

__all__ = ["Fate", "InMemoryCluster", "InlineProcess", "Network", "Process", "VirtualClock"]
