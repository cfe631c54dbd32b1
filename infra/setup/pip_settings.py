"""Translates pip's configuration into uv's, because uv does not read pip's configuration.

So a machine that is configured for pip needs no further configuration.

Invariants:
    - This module uses only the standard library.
    - If the user set a variable of uv, the variable has priority over pip's configuration.
    - Values are passed to uv as environment variables, never as arguments. Addresses may contain passwords, and every
      user of a machine can read the arguments of processes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

#: Option of pip -> variables of uv with the same meaning.
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
#: Sections of pip's configuration that apply to ``pip install``, from the lowest to the highest priority.
SECTIONS = ("global", "install", ":env:")

_LINE = re.compile(r"^(:env:|[a-z]+)\.([a-z-]+)=(.+)$")


def pip_options(listing: str) -> dict[str, str]:
    """Option -> value for ``pip install``, read from the output of ``pip config list`` (``listing``)."""
    sections: dict[str, dict[str, str]] = {name: {} for name in SECTIONS}
    for line in listing.splitlines():
        found = _LINE.match(line)
        if found and found[1] in sections:
            sections[found[1]][found[2]] = str(ast.literal_eval(found[3]))
    return {option: value for name in SECTIONS for option, value in sections[name].items()}


def uv_variables(
    options: Mapping[str, str], environment: Mapping[str, str], *, system_certificates: bool
) -> dict[str, str]:
    """The environment variables for uv, made from pip's options and this process's environment.

    ``system_certificates`` is whether the operating system has certificates. pip uses these certificates by default. uv
    uses them only if a variable is set.
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
    # With this index strategy, uv chooses the best version of a package from all indexes, as pip does. It is safe,
    # because the lock file has the hashes of all packages.
    told["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {**told, **environment}


def uv_flags(options: Mapping[str, str]) -> list[str]:
    """The arguments for uv: only ``--no-index``, because uv has environment variables for all other options of pip."""
    return ["--no-index"] if options.get("no-index", "").lower() in {"1", "true", "yes", "on", "y", "t"} else []


def _existing(places: list[str]) -> list[str]:
    """The subset of ``places`` that are URLs or existing paths.

    Missing folders are left out, because pip ignores them but uv fails.
    """
    paths = [place if "://" in place else str(Path(place).expanduser()) for place in places]
    return [place for place in paths if "://" in place or Path(place).exists()]
