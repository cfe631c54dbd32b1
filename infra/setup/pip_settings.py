"""Translates pip's configuration for uv, which does not read it.

A machine that is set up for pip then needs no other set-up.

Invariants:
    - Only the standard library is used.
    - A variable that the user set for uv wins over pip's configuration.
    - Values go to uv in its environment, never in its arguments: addresses may hold passwords, and every user of a
      machine can read arguments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

#: pip's options and the uv variables with the same meaning.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX",),
    "extra-index-url": ("UV_INDEX",),
    "find-links": ("UV_FIND_LINKS",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "no-cache-dir": ("UV_NO_CACHE",),
}
#: pip's sections, from the weakest to the strongest; other sections apply to other pip commands.
SECTIONS = ("global", "install", ":env:")

_LINE = re.compile(r"^(:env:|[a-z]+)\.([a-z-]+)=(.+)$")


def pip_options(listing: str) -> dict[str, str]:
    """The options of ``pip install``, read from the output of ``pip config list``."""
    sections: dict[str, dict[str, str]] = {name: {} for name in SECTIONS}
    for line in listing.splitlines():
        found = _LINE.match(line)
        if found and found[1] in sections:
            sections[found[1]][found[2]] = str(ast.literal_eval(found[3]))
    return {option: value for name in SECTIONS for option, value in sections[name].items()}


def uv_variables(
    options: Mapping[str, str], environment: Mapping[str, str], *, system_certificates: bool
) -> dict[str, str]:
    """The environment for uv, from pip's options and this process's environment.

    With ``system_certificates``, the operating system keeps certificates: pip uses them by default, uv by a variable.
    """
    told: dict[str, str] = {}
    if "REQUESTS_CA_BUNDLE" in environment:
        told["SSL_CERT_FILE"] = environment["REQUESTS_CA_BUNDLE"]
    for option, value in options.items():
        words = _existing(value.split()) if option == "find-links" else value.split()
        for variable in VARIABLES.get(option, ()) if words else ():
            told[variable] = ("," if option == "find-links" else " ").join(words)
    if system_certificates and "SSL_CERT_FILE" not in {**told, **environment}:
        told["UV_SYSTEM_CERTS"] = "true"
    # pip chooses the best version from all indexes. The hashes of the lock make that safe.
    told["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {**told, **environment}


def uv_flags(options: Mapping[str, str]) -> list[str]:
    """The arguments for uv; the one option of pip for which uv has no variable."""
    return ["--no-index"] if options.get("no-index", "").lower() in {"1", "true", "yes", "on", "y", "t"} else []


def _existing(places: list[str]) -> list[str]:
    """The existing folders: pip ignores a folder that does not exist, but uv fails."""
    paths = [place if "://" in place else str(Path(place).expanduser()) for place in places]
    return [place for place in paths if "://" in place or Path(place).exists()]
