"""Masks secrets in texts; logs, errors, answers, metadata and the ``repr`` of settings use it.

``masked`` hides two kinds of text: values that were passed to ``remember``, anywhere in a text; and texts with the form
of a secret, such as users and passwords in URLs, or the value of ``password=``.

Invariants:
    - Only the standard library is used: the base class of all errors imports this module, and so does set-up.
    - Masking a masked text changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote

MASK = "***"
#: Shorter values are not remembered, because they also occur in texts without a secret.
REMEMBERED_MIN = 6

_NAMES = (
    r"passw(?:or)?d|passphrase|secret|token|jaas|credential|access[._-]?key|private[._-]?key|account[._-]?key"
    r"|api[._-]?key|key[._-]?pem|ssl[._-]key|signature"
)
_SECRET_NAME = re.compile(rf"{_NAMES}|^(?:key|sig|auth)$", re.IGNORECASE)
#: Names of places and kinds, whose values are needed in errors.
_PLACE = re.compile(
    r"(?:location|path|file|folder|type|provider|class|method|mechanism|endpoint(?:[._-]url)?)$", re.IGNORECASE
)
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)([^\s/?#'\"<>]+)@")
#: ``name=value``, as in queries of URLs, connection strings, parameters of JAAS and command lines.
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
    """Make ``masked`` hide these values from now on in this process, including their forms in URLs and in JSON."""
    global _remembered, _pattern
    known = _remembered | {one for one in secrets if len(one) >= REMEMBERED_MIN}
    if known == _remembered:
        return
    forms = {form for one in known for form in _forms(one)}
    # longest first, because one secret may begin with another
    pattern = re.compile("|".join(map(_as_pattern, sorted(forms, key=len, reverse=True))))
    _remembered, _pattern = known, pattern


def masked(text: str) -> str:
    """The text with ``***`` for each secret."""
    if _pattern is not None:
        text = _pattern.sub(MASK, text)
    if "://" in text:
        text = _URL.sub(_without_user, text)
    if "=" in text:
        text = _PAIR.sub(_without_value, text)
    return text


def masked_data(value: Any) -> Any:
    """JSON-ready data with every text masked, and with ``***`` for the values of secret names."""
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
    """A URL for logs and errors: with its user, ``***`` for the password and for each value of the query."""
    if "://" not in url:
        return masked(url)
    scheme, user, place, query = _parts(url)
    if user:
        name, colon, _ = user.partition(":")
        user = f"{name}:{MASK}@" if colon else f"{MASK}@"
    values = "&".join(f"{pair.partition('=')[0]}={MASK}" if "=" in pair else MASK for pair in query.split("&"))
    return f"{scheme}://{user}{masked(place)}{'?' + values if query else ''}"


def is_secret_name(name: str) -> bool:
    """Whether a property with this name holds a secret, judged by the words of the name."""
    return bool(_SECRET_NAME.search(name)) and not _PLACE.search(name)


def secrets_of_url(url: str, *, whole: bool = False) -> Iterator[str]:
    """The password and the secret query values of a URL.

    With ``whole``, also possible tokens in the rest of the URL.
    """
    _, user, place, query = _parts(url)
    name, colon, password = user.partition(":")
    if user:
        yield from dict.fromkeys((password, unquote(password)) if colon else (name,))
    given = parse_qsl(query, keep_blank_values=True)
    yield from (value for name, value in given if is_secret_name(name))
    if whole:
        path = place.partition("/")[2]
        # plain words such as `services` also occur in texts without a secret
        yield from filter(_TOKEN.search, (url, path, query, *path.split("/"), *(value for _, value in given)))


def secrets_of(value: Any) -> Iterator[str]:
    """The secrets in a secret setting: its text, or the values of a mapping that have secret names or hold a URL."""
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
    """A pattern for one form; a password such as ``postgres`` is not masked inside longer words."""
    exact = re.escape(form)
    return rf"(?<![A-Za-z]){exact}(?![A-Za-z])" if re.fullmatch(r"[a-z]+", form) else exact


def _parts(url: str) -> tuple[str, str, str, str]:
    """Scheme, user with password, place and query of a URL; the password may hold a slash that is not quoted."""
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    host = place.partition("/")[0]
    if "@" not in host and not ("@" in place and ":" in host):
        return scheme, "", place, query
    user, _, place = place.rpartition("@")
    return scheme, user, place, query


def _forms(secret: str) -> set[str]:
    """The forms of a secret in plain text, in URLs, in JSON and in Python's repr."""
    return {
        *(secret, quote(secret), quote(secret, safe=""), quote_plus(secret)),
        *(json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]),
    }


def _without_user(found: re.Match[str]) -> str:
    return found[0] if found[2].endswith(f":{MASK}") else f"{found[1]}{MASK}@"


def _without_value(found: re.Match[str]) -> str:
    name = found[1].rstrip(" =\t")
    return found[0] if _PLACE.search(name) else f"{found[1]}{MASK}"
