"""The Kafka Streams contender, which all comparisons with it share."""

from __future__ import annotations

import pytest

from holdfast.infra.settings import load_settings
from holdfast.infra.setup.jars import JarSource
from holdfast.infra.setup.java import Java
from tests.bench.peers import Contender, Machine, NotHere, streams


@pytest.fixture(scope="session")
def kafka_streams(java: Java) -> Contender:
    """The compiled Kafka Streams program. Skips the test if a compiler or its jars are missing."""
    settings = load_settings()
    try:
        return streams(Machine(settings.cache, java, JarSource(java, settings.ivy_settings)))
    except NotHere as reason:
        pytest.skip(f"Kafka Streams is not here: {reason}")
