"""Chooses the trusted certificates for HTTP requests.

This module exists for speed. Without an explicit context, httpx reads the machine's certificates for each client, even
for plain HTTP. That costs 25 ms of CPU for each request to a worker.
"""

from __future__ import annotations

import ssl

#: A context without certificates: plain HTTP works, every TLS connection is refused.
_NONE = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def trusted_for(url: str) -> ssl.SSLContext | bool:
    """The value for httpx's argument ``verify``: the machine's certificates for HTTPS, no certificates for HTTP."""
    return True if url.lower().startswith("https:") else _NONE
