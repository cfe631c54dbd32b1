"""Certificates for servers of the tests, made by OpenSSL."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Certificates:
    """A server certificate for localhost, and the CA certificate that signs it.

    Both say what their keys are for. Since Python 3.13, ``ssl`` refuses a CA that does not.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, self.certificate, self.key = folder / "ca.crt", folder / "server.crt", folder / "server.key"
        authority, request, extensions = folder / "ca.key", folder / "server.csr", folder / "server.ext"
        extensions.write_text(
            "subjectAltName=DNS:localhost,IP:127.0.0.1\n"
            "keyUsage=critical,digitalSignature,keyEncipherment\n"
            "authorityKeyIdentifier=keyid\n"
        )
        new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
        of_ca = ["-x509", "-days", "7", "-subj", "/CN=test-ca", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        sign = ["openssl", "x509", "-req", "-days", "7", "-in", request, "-CAcreateserial", "-extfile", extensions]
        for command in (
            [*new, *of_ca, "-keyout", authority, "-out", self.ca],
            [*new, "-subj", "/CN=localhost", "-keyout", self.key, "-out", request],
            [*sign, "-CA", self.ca, "-CAkey", authority, "-out", self.certificate],
        ):
            subprocess.run(command, check=True, capture_output=True)
