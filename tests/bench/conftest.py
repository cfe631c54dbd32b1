"""The contenders Kafka Streams and Quix Streams, which all comparisons with them share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.infra.settings import load_settings
from holdfast.infra.setup.jars import JarSource
from holdfast.infra.setup.java import Java
from tests.bench.asked import Asked, quix_local
from tests.bench.peers import Contender, Machine, NotHere, quix_python, streams


@pytest.fixture(scope="session")
def kafka_streams(java: Java) -> Contender:
    """The compiled Kafka Streams program. Skips the test if a compiler or its jars are missing."""
    settings = load_settings()
    try:
        return streams(Machine(settings.cache, java, JarSource(java, settings.ivy_settings)))
    except NotHere as reason:
        pytest.skip(f"Kafka Streams is not here: {reason}")


@pytest.fixture(scope="session")
def quix() -> Iterator[Asked]:
    """The program of Quix Streams without a broker. Skips the test if its packages can't be installed."""
    try:
        python = quix_python(load_settings().cache)
    except NotHere as reason:
        pytest.skip(f"Quix Streams is not here: {reason}")
    with quix_local(python) as process:
        yield process
