"""Masks secrets in all texts that Holdfast shows: logs, errors, responses, metadata, and the ``repr`` of settings.

``masked`` replaces each value that was passed to ``remember`` by ``***``. It also replaces text that looks like a
secret, such as a user with password in a URL, or the value after ``password=``.

Invariants:
    - This module uses only the standard library, because the base class of all errors and the set-up import it.
    - Masking a masked text changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote

MASK = "***"
#: Minimum length of a remembered secret, characters. Shorter values would also match text that is no secret.
REMEMBERED_MIN = 6

_NAMES = (
    r"passw(?:or)?d|passphrase|secret|token|jaas|credential|access[._-]?key|private[._-]?key|account[._-]?key"
    r"|api[._-]?key|key[._-]?pem|ssl[._-]key|signature"
)
_SECRET_NAME = re.compile(rf"{_NAMES}|^(?:key|sig|auth)$", re.IGNORECASE)
#: Matches names such as ``ssl.key.location``. Their values are paths or types, not secrets, so errors may show them.
_PLACE = re.compile(
    r"(?:location|path|file|folder|type|provider|class|method|mechanism|endpoint(?:[._-]url)?)$", re.IGNORECASE
)
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)([^\s/?#'\"<>]+)@")
#: Matches ``name=value`` with a secret name, in queries of URLs, connection strings, JAAS settings and command lines.
_PAIR = re.compile(
    rf"(?<![\w.])([\w.-]*(?:{_NAMES}|(?<![\w.])sig(?=\s*=))[\w.-]*\s*=\s*)"
    r"(\"[^\"]*\"|'[^']*'|[^\s,;&\"'`)\]}}]+)",
    re.IGNORECASE,
)
_JAAS_VALUE = re.compile(r"=\s*\"([^\"]+)\"")

_TOKEN = re.compile(r"[A-Z0-9]|.{16}")

_remembered: frozenset[str] = frozenset()
_pattern: re.Pattern[str] | None = None


def remember(secrets: Iterable[str]) -> None:
    """Make ``masked`` hide these values in this process from now on, including their URL-quoted and JSON forms."""
    global _remembered, _pattern
    known = _remembered | {one for one in secrets if len(one) >= REMEMBERED_MIN}
    if known == _remembered:
        return
    forms = {form for one in known for form in _forms(one)}
    # The longest form comes first in the pattern, because one secret may be the beginning of another secret.
    pattern = re.compile("|".join(map(_as_pattern, sorted(forms, key=len, reverse=True))))
    _remembered, _pattern = known, pattern


def masked(text: str) -> str:
    """The text, where each secret is replaced by ``***``."""
    if _pattern is not None:
        text = _pattern.sub(MASK, text)
    if "://" in text:
        text = _URL.sub(_without_user, text)
    if "=" in text:
        text = _PAIR.sub(_without_value, text)
    return text


def masked_data(value: Any) -> Any:
    """JSON-ready data, where all texts are masked, and values of keys with a secret name become ``***``."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {
            name: MASK if isinstance(one, str) and is_secret_name(str(name)) else masked_data(one)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(map(masked_data, value)) if type(value) in (list, tuple) else value
    return value


def shown_url(url: str) -> str:
    """A URL for logs and errors. The user name is kept, but the password and each value of the query become ``***``."""
    if "://" not in url:
        return masked(url)
    scheme, user, place, query = _parts(url)
    if user:
        name, colon, _ = user.partition(":")
        user = f"{name}:{MASK}@" if colon else f"{MASK}@"
    values = "&".join(f"{pair.partition('=')[0]}={MASK}" if "=" in pair else MASK for pair in query.split("&"))
    return f"{scheme}://{user}{masked(place)}{'?' + values if query else ''}"


def is_secret_name(name: str) -> bool:
    """Whether the name of a property, such as ``sasl.password``, shows that its value is a secret."""
    return bool(_SECRET_NAME.search(name)) and not _PLACE.search(name)


def secrets_of_url(url: str, *, whole: bool = False) -> Iterator[str]:
    """Yields the secrets in a URL: its password, and the values of secret names in its query.

    With ``whole=True``, also those of the following texts that look like a token: the URL, its path, each part of the
    path, its query, and each value in the query.
    """
    _, user, place, query = _parts(url)
    name, colon, password = user.partition(":")
    if user:
        yield from dict.fromkeys((password, unquote(password)) if colon else (name,))
    given = parse_qsl(query, keep_blank_values=True)
    yield from (value for name, value in given if is_secret_name(name))
    if whole:
        path = place.partition("/")[2]
        # Only parts that look like a token are secrets. Plain words such as `services` also occur in normal text.
        yield from filter(_TOKEN.search, (url, path, query, *path.split("/"), *(value for _, value in given)))


def secrets_of(value: Any) -> Iterator[str]:
    """Yields the secrets in the value of a secret setting.

    If the value is a URL, these are the secrets in the URL. Any other text is a secret as a whole. In a mapping, these
    are the values with secret names, and the secrets in URLs.
    """
    if isinstance(value, Mapping):
        for name, one in value.items():
            if isinstance(one, str) and "://" in one:
                yield from secrets_of_url(one)
            elif isinstance(one, str) and is_secret_name(str(name)):
                yield one
                yield from _JAAS_VALUE.findall(one)
            elif isinstance(one, Mapping):
                yield from secrets_of(one)
    elif isinstance(value, str):
        yield from secrets_of_url(value) if "://" in value else (value,)


def _as_pattern(form: str) -> str:
    """A regular expression for one form of a secret; a word such as ``postgres`` matches only as a whole word."""
    exact = re.escape(form)
    return rf"(?<![A-Za-z]){exact}(?![A-Za-z])" if re.fullmatch(r"[a-z]+", form) else exact


def _parts(url: str) -> tuple[str, str, str, str]:
    """Splits a URL into four parts: scheme, user with password, host with path, and query.

    The password may contain a slash that is not quoted.
    """
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    host = place.partition("/")[0]
    if "@" not in host and not ("@" in place and ":" in host):
        return scheme, "", place, query
    user, _, place = place.rpartition("@")
    return scheme, user, place, query


def _forms(secret: str) -> set[str]:
    """All forms in which a secret may occur: plain text, quoted in URLs, in JSON, and in Python's ``repr``."""
    return {
        *(secret, quote(secret), quote(secret, safe=""), quote_plus(secret)),
        *(json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]),
    }


def _without_user(found: re.Match[str]) -> str:
    return found[0] if found[2].endswith(f":{MASK}") else f"{found[1]}{MASK}@"


def _without_value(found: re.Match[str]) -> str:
    name = found[1].rstrip(" =\t")
    return found[0] if _PLACE.search(name) else f"{found[1]}{MASK}"
