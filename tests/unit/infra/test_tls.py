"""Plain HTTP loads no certificates, and TLS connections are still verified."""

from __future__ import annotations

import ssl

import httpx
import pytest

from holdfast.infra.tls import trusted_for


@pytest.mark.parametrize("url", ["http://127.0.0.1:80", "HTTP://[::1]:80/graphql"])
def test_a_client_of_plain_http_reads_no_certificates(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> ssl.SSLContext:
        raise AssertionError("the machine's certificates were read")

    monkeypatch.setattr(ssl, "create_default_context", read)
    with pytest.raises(AssertionError, match="were read"), httpx.Client():
        pass
    with httpx.Client(verify=trusted_for(url)):
        pass


@pytest.mark.parametrize("url", ["https://dagster.example", "HTTPS://dagster.example"])
def test_https_trusts_the_certificates_of_the_machine(url: str) -> None:
    assert trusted_for(url) is True


def test_for_plain_http_no_server_with_tls_is_trusted() -> None:
    context = trusted_for("http://127.0.0.1:80")
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.get_ca_certs() == []
    assert context.cert_store_stats()["x509"] == 0
