"""Tests that you can run on your own classes: ``from holdfast.testing import SinkContract, SourceContract``."""

from __future__ import annotations

from holdfast.processors.testing.sink_contract import PausingSinkContract, SinkContract
from holdfast.processors.testing.source_contract import SourceContract

__all__ = ["PausingSinkContract", "SinkContract", "SourceContract"]
