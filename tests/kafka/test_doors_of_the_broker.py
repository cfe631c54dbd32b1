"""Hostile bytes arrive on the embedded broker's ports, from a web page or a broken client.

They do not stop the broker.
"""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack, suppress

import pytest

from holdfast.infra.kafka.embedded.broker import answers_metadata
from tests.mechanics.tiers import variants
from tests.parts.brokers import shared_broker
from tests.parts.open_ports import listening


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


#: Requests that a browser sends for a hostile page, and bytes that no Kafka client would send.
HOSTILE = {
    "a page's form": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
    "a page's image": b"GET /x.png HTTP/1.1\r\nHost: evil.example.com\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "a length of two gigabytes": struct.pack(">i", 2**31 - 1) + b"x" * 1000,
    "a negative length": struct.pack(">i", -5) + b"x" * 1000,
    "an empty request": struct.pack(">i", 0),
    "a request of an unknown kind": framed(struct.pack(">hhih", 9999, 0, 1, -1)),
    "a version of the future": framed(struct.pack(">hhih", 3, 30000, 1, -1)),
    "a metadata request with a body that lies": framed(struct.pack(">hhihi", 3, 0, 1, -1, 2**31 - 1)),
    "noise": bytes(range(256)) * 40,
}


def test_only_this_machine_reaches_its_ports() -> None:
    broker = shared_broker()
    found = listening([broker.pid])
    assert broker.port in found
    assert set(found.values()) == {"127.0.0.1"}
    assert len(found) == 2, "clients' port and the controller's"


@pytest.mark.parametrize("what", variants(sorted(HOSTILE)))
def test_it_answers_clients_while_strangers_talk(what: str, broker: str) -> None:
    ports = listening([shared_broker().pid])
    with ExitStack() as lines:
        for port in ports:
            for _ in range(25):
                line = lines.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
                with suppress(BrokenPipeError, ConnectionResetError):  # the broker closes some of these connections
                    line.sendall(HOSTILE[what])
        assert answers_metadata(broker, timeout_s=30)
    assert answers_metadata(broker, timeout_s=30)
