"""The certificates that HTTP requests trust.

Without an explicit context, httpx reads the machine's certificates for each client, even for plain HTTP: 25 ms of CPU
for each request to a worker.
"""

from __future__ import annotations

import ssl

#: Trusts no certificate: plain HTTP works, and TLS is refused.
_NONE = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def trusted_for(url: str) -> ssl.SSLContext | bool:
    """The ``verify`` of httpx for a URL: the machine's certificates for HTTPS, none for plain HTTP."""
    return True if url.lower().startswith("https:") else _NONE
