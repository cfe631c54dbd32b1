"""TLS of the workers' HTTP servers: certificate, sockets, and the authorities by which workers trust each other.

Invariants:
    - A certificate that is renewed on disk is used without a restart. If the new files can't be used, the former
      certificate stays in use.
    - No handshake blocks a thread: the sockets do not wait.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path

import structlog

from holdfast.infra.errors import BadConfiguration

_log = structlog.get_logger("tls")

#: Seconds between two looks whether the files of a certificate were replaced.
LOOK_EVERY_S = 30.0
#: Maximum bytes that TLS encrypts in one record.
_RECORD_BYTES = 16_384


class TlsUnusable(BadConfiguration):
    """A file of a certificate or of authorities can't be used. Field: ``path``."""


def trusting(authorities: Path | None) -> ssl.SSLContext:
    """Returns the context of a client that trusts the authorities in a PEM file; None: those of the machine.

    Raises:
        TlsUnusable: The file can't be read, or has no certificate.
    """
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as failure:
        raise TlsUnusable(
            f"The authorities in {authorities} can't be used: {_reason(failure)}.",
            action="Set `HOLDFAST_SERVING__TLS_AUTHORITIES` to a PEM file with the certificates of authorities.",
            path=str(authorities),
        ) from failure


class ServerCertificate:
    """The certificate of a server, read from PEM files.

    Args:
        certificate: The file with the certificate, and with those between it and the authority.
        key: The file with the private key, without a password; None if it is in the same file.

    Raises:
        TlsUnusable: The files can't be read, or do not belong together.
    """

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self._files = (certificate, key or certificate)
        self._written_at = self._times()
        self._looked_at = time.monotonic()
        self._context = self._load()

    def serve(self, accepted: socket.socket) -> TlsSocket:
        """Returns the socket of an accepted connection with TLS. Its handshake is made by the first reads.

        Raises:
            OSError: The client has disconnected.
        """
        self._look()
        return TlsSocket(self._context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False))

    def _look(self) -> None:
        """Loads the certificate again if a file was replaced."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at, written_at = now, self._times()
        if written_at == self._written_at:
            return
        try:
            self._context = self._load()
        except TlsUnusable as failure:
            _log.warning("the new certificate can't be used; the former one stays", error=failure.message)
            return
        self._written_at = written_at
        _log.info("the certificate was loaded again", path=str(self._files[0]))

    def _times(self) -> list[int]:
        times = []
        for file in self._files:
            with suppress(OSError):
                times.append(file.stat().st_mtime_ns)
        return times

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        certificate, key = self._files
        try:
            # Without a password, OpenSSL would ask on the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ssl.SSLError, ValueError) as failure:
            raise TlsUnusable(
                f"The certificate {certificate} with the key {key} can't be used: {_reason(failure)}.",
                action="Set `HOLDFAST_SERVING__TLS_CERTIFICATE` and `HOLDFAST_SERVING__TLS_KEY` to PEM files that "
                "belong together and that this user may read; the key has no password.",
                path=str(certificate),
            ) from failure
        return context


class TlsSocket:
    """A connection with TLS that raises what a socket without TLS raises: BlockingIOError if it would have to wait."""

    def __init__(self, wrapped: ssl.SSLSocket) -> None:
        self._socket = wrapped

    def fileno(self) -> int:
        """Returns the file descriptor."""
        return self._socket.fileno()

    def recv(self, size: int) -> bytes:
        """Returns bytes that have come; no bytes mean that the client has disconnected. Makes the handshake first.

        A whole record is returned, because the kernel does not announce the rest of one that was read.
        """
        try:
            return self._socket.recv(max(size, _RECORD_BYTES))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as waits:
            raise BlockingIOError from waits

    def send(self, content: memoryview) -> int:
        """Sends bytes until the kernel takes no more. Returns how many were sent, at least one."""
        sent = 0
        try:
            while sent < len(content):
                sent += self._socket.send(content[sent : sent + _RECORD_BYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as waits:
            if not sent:
                raise BlockingIOError from waits
        return sent

    def shutdown(self, how: int) -> None:
        """Tells the client that no more bytes come."""
        with suppress(OSError, ValueError):  # the client's own farewell, for which nobody waits
            self._socket.unwrap()
        self._socket.shutdown(how)

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


def _reason(failure: Exception) -> str:
    return getattr(failure, "strerror", None) or getattr(failure, "reason", None) or str(failure)
