"""A worker's HTTP server with a certificate: what other machines see, what this machine sees, and renewals."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.settings import ServingSettings
from holdfast.infra.system import server_tls
from holdfast.infra.system.server_tls import ServerCertificate, TlsUnusable, trusting
from holdfast.processors.engine.queries.errors import StateAway
from holdfast.processors.engine.queries.figures import QueryFigures
from holdfast.processors.engine.serving.connections import AT_ONCE_MAX, RequestServer
from holdfast.processors.engine.serving.guard import Guard
from holdfast.processors.engine.serving.requests import Answer, Head, Later
from holdfast.processors.engine.serving.state.peers import Access, Peer, Peers
from holdfast.processors.testing.clock import VirtualClock
from tests.parts.certificates import Certificates

#: More than the kernel buffers, so that a large answer is sent in many parts.
LARGE = "x" * 3_000_000
Serve = Callable[..., RequestServer]


class Routes:
    """Routes of state with one answer."""

    def serves(self, page: str) -> bool:
        return page.startswith("/stores")

    def at_once(self, head: Head) -> Answer | Later | None:
        return Answer(200, {"page": head.page, "text": LARGE if head.page.endswith("large") else ""})

    def on_thread(self, head: Head) -> Answer | Later:
        raise AssertionError(head)

    @property
    def figures(self) -> Mapping[str, QueryFigures]:
        return {}

    def counted(self, head: Head, answer: Answer) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("other"))


@pytest.fixture
def serve() -> Iterator[Serve]:
    made = []

    def start(certificate: Path, key: Path | None) -> RequestServer:
        serving = ServingSettings(tls_certificate=certificate, tls_key=key)
        page = lambda *_: Answer(200, {"paused": False})  # noqa: E731
        made.append(RequestServer(serving, Guard(serving), page, ["/status", "/health"], queries=Routes()))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.close()


def client(authorities: Path) -> httpx.Client:
    return httpx.Client(verify=trusting(authorities), trust_env=False, timeout=30)


def test_queries_and_other_routes_are_answered_with_tls(serve: Serve, own: Certificates) -> None:
    server = serve(own.certificate, own.key)
    with client(own.ca) as asking:
        for number in range(5):
            found = asking.get(f"https://localhost:{server.port}/stores/{number}")
            assert found.json() == {"page": f"/stores/{number}", "text": ""}
        assert server.open_connections == 1
        assert asking.get(f"https://localhost:{server.port}/stores/large").json()["text"] == LARGE
        assert asking.get(f"https://127.0.0.1:{server.port}/status").json() == {"paused": False}


def test_an_answer_ends_with_the_farewell_of_tls(serve: Serve, own: Certificates) -> None:
    """Without it, a client can't tell a complete answer from one that somebody has cut."""
    server = serve(own.certificate, own.key)
    trusts = trusting(own.ca)
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain,
        trusts.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False) as link,
    ):
        link.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        got = b""
        while more := link.recv(65_536):
            got += more
        assert got.endswith(b'{"paused": false}')


def test_programs_of_this_machine_need_no_certificate(serve: Serve, own: Certificates) -> None:
    server = serve(own.certificate, own.key)
    assert server.url.startswith("http://127.0.0.1:")
    assert server.url != f"http://127.0.0.1:{server.port}"
    assert httpx.get(server.url + "/status", trust_env=False, timeout=30).json() == {"paused": False}
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{server.port}/status", trust_env=False, timeout=30)


def test_a_certificate_of_another_authority_or_name_is_refused(
    serve: Serve, own: Certificates, other: Certificates
) -> None:
    server = serve(own.certificate, own.key)
    with client(other.ca) as asking, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        asking.get(f"https://localhost:{server.port}/status")
    with client(own.ca) as asking, pytest.raises(httpx.ConnectError, match="Hostname mismatch|not valid for"):
        asking.get(f"https://localhost:{server.port}/status", extensions={"sni_hostname": "elsewhere"})


def test_clients_that_do_not_complete_a_handshake_change_nothing(serve: Serve, own: Certificates) -> None:
    server = serve(own.certificate, own.key)
    with ExitStack() as silent, client(own.ca) as asking:
        for number in range(AT_ONCE_MAX + 20):
            link = silent.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            link.sendall((b"\x16\x03\x01", b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(40))[number % 4])
        assert asking.get(f"https://localhost:{server.port}/stores/a").status_code == 200
        assert server.open_connections <= AT_ONCE_MAX


def test_a_renewed_certificate_is_used_without_a_restart(
    serve: Serve, own: Certificates, other: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_tls, "LOOK_EVERY_S", 0.0)
    both = tmp_path / "both.pem"

    def renew(issued: Certificates, *, key: bytes | None = None) -> None:
        both.write_bytes(issued.certificate.read_bytes() + (issued.key.read_bytes() if key is None else key))
        os.utime(both, ns=(both.stat().st_atime_ns, both.stat().st_mtime_ns + 1))

    def trusted(issued: Certificates) -> bool:
        with client(issued.ca) as asking:
            try:
                return asking.get(f"https://localhost:{server.port}/status").is_success
            except httpx.ConnectError:
                return False

    renew(own)
    server = serve(both, None)
    assert (trusted(own), trusted(other)) == (True, False)
    renew(other)
    assert (trusted(own), trusted(other)) == (False, True)
    renew(own, key=b"")  # half of a renewal
    assert (trusted(own), trusted(other)) == (False, True)
    renew(own)
    assert (trusted(own), trusted(other)) == (True, False)


@pytest.mark.parametrize("case", ["missing", "of another certificate", "with a password", "no key"])
def test_files_that_can_not_be_used_are_named_with_what_to_do(
    own: Certificates, other: Certificates, tmp_path: Path, case: str
) -> None:
    key = tmp_path / "key.pem"
    if case == "of another certificate":
        key = other.key
    elif case == "with a password":
        locked = ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", str(own.key), "-out", str(key)]
        assert os.spawnvp(os.P_WAIT, locked[0], locked) == 0
    elif case == "no key":
        key = own.certificate
    with pytest.raises(TlsUnusable, match=f"with the key {key} can't be used: ") as refused:
        ServerCertificate(own.certificate, key)
    assert "HOLDFAST_SERVING__TLS_KEY" in refused.value.action
    with pytest.raises(TlsUnusable, match="authorities in .* can't be used"):
        trusting(tmp_path / "authorities.pem")


def test_a_key_or_authorities_without_a_certificate_are_refused(own: Certificates) -> None:
    for given in ({"tls_key": own.key}, {"tls_authorities": own.ca}):
        with pytest.raises(ValueError, match="without HOLDFAST_SERVING__TLS_CERTIFICATE; set that too"):
            ServingSettings(**given)  # type: ignore[arg-type]


def test_a_context_of_a_client_that_trusts_the_machine_checks_names() -> None:
    assert trusting(None).check_hostname
    assert trusting(None).verify_mode is ssl.CERT_REQUIRED


def test_a_worker_asks_workers_of_other_machines_with_tls(
    serve: Serve, own: Certificates, other: Certificates, tmp_path: Path
) -> None:
    server = serve(own.certificate, own.key)
    app = Application("localhost:1", consumer_group="queries", loglevel=None)
    app.dataframe(app.topic("in")).apply(lambda value, state: value, stateful=True, store="totals")

    def asked(authorities: Path) -> Answer:
        access = Access("t" * 20, trusting(authorities))
        peers = Peers(app.topology(), InMemoryCluster(), VirtualClock(), "queries", "own", tmp_path, access)
        try:
            return peers.ask(Peer(f"https://localhost:{server.port}", "t" * 20), "/stores/a", 1.0)
        finally:
            peers.close()

    assert asked(own.ca).code == 200
    with pytest.raises(StateAway, match="CERTIFICATE_VERIFY_FAILED"):
        asked(other.ca)
