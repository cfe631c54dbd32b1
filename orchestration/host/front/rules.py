"""Decides whether a request may reach Dagster's webserver, and which person sent the request. Pure functions.

    checked for every request         reason
    method                            Dagster needs only GET, HEAD and POST
    Host                              a hostile page can resolve its own name to this machine (DNS rebinding)
    Origin, Sec-Fetch-Site            any web page can make a browser send requests; these headers name its site
    content type of a POST            before a foreign page's JSON, the browser asks this server for permission (CORS)
    no GraphQL query in a GET's URL   Dagster would execute it, for example from an image URL in a foreign page
    token, session or proxy's header  required if the settings have tokens or proxies

The checks apply to pages, files, GraphQL and WebSockets.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from holdfast.infra.settings import WebserverSettings, is_loopback
from holdfast.infra.settings.serving import LOOPBACK_NAMES

#: URL path, after the path prefix, to which the sign-in form is posted.
SIGN_IN = "/holdfast/sign-in"
#: Name of the cookie that holds the session after sign-in.
COOKIE = "holdfast_session"
#: Lifetime of a session (a browser that has signed in), seconds.
SESSION_S = 12 * 3600
#: Maximum length of a person's name that a proxy sends, characters.
NAME_MAX = 100

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(:\d{1,5})?", re.I)
_ORIGIN = re.compile(r"https?://([^\s/@?#]+)", re.I)
_SHOWN_MAX = 120


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to judge. ``headers`` maps names in lower case to all values; ``peer`` is the client's address."""

    kind: Literal["http", "websocket"]
    method: str
    path: str
    peer: str
    headers: Mapping[str, Sequence[str]]

    def all(self, name: str) -> Sequence[str]:
        """All values of a header; ``name`` is in lower case."""
        return self.headers.get(name, ())

    def first(self, name: str) -> str:
        """The first value of a header; empty if the request does not have the header."""
        values = self.all(name)
        return values[0] if values else ""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may pass. ``who`` is the person who sent it; None if the settings require no sign-in."""

    who: str | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The request may not pass: HTTP status, a sentence about the cause, and the action that would allow it."""

    status: int
    seen: str
    action: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The webserver's settings, converted for the checks of requests."""

    #: Names that a ``Host`` header may contain. The next field, ``origins`` (``name:port``), has values that an
    #: ``Origin`` header may have although they differ from ``Host``.
    names: frozenset[str]
    origins: frozenset[str]
    tokens: Mapping[str, str] = field(repr=False)
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
    identity_header: str
    prefix: str = ""

    @property
    def asks(self) -> bool:
        """Whether each request must be authenticated by a token, a session or a proxy."""
        return bool(self.tokens or self.proxies)


def rules_of(settings: WebserverSettings, *, prefix: str = "") -> Rules:
    """The rules from the webserver's settings; ``prefix`` is the URL path prefix of Dagster's UI."""
    own = {settings.host.lower()} if settings.host not in ("0.0.0.0", "::") else set()  # noqa: S104 # nosec B104: compared, not bound
    return Rules(
        names=LOOPBACK_NAMES | own | {_name(each) for each in settings.hosts},
        origins=frozenset(settings.hosts),
        tokens=dict(settings.tokens),
        proxies=tuple(ipaddress.ip_network(each) for each in settings.proxies),
        identity_header=settings.identity_header.lower(),
        prefix=prefix,
    )


def decide(asked: Asked, rules: Rules, now: float) -> Admitted | Refused:
    """Apply all checks to a request; ``now`` is seconds since 1970."""
    refused = _method(asked) or _host(asked, rules) or _origin(asked, rules) or _site(asked) or _content(asked, rules)
    if refused is not None:
        return refused
    if not rules.asks or signs_in(asked, rules):
        return Admitted(None)
    return _identified(asked, rules, now)


def signs_in(asked: Asked, rules: Rules) -> bool:
    """Whether the request posts the sign-in form, so that it needs no token yet."""
    return bool(rules.tokens) and asked.method == "POST" and asked.path == rules.prefix + SIGN_IN


def trusted(peer: str, rules: Rules) -> bool:
    """Whether the client's address is one of the proxies in the settings, which authenticate persons themselves."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    # A server that listens on IPv6 sees an IPv4 client as ``::ffff:10.0.0.1``.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((mapped or address) in network for network in rules.proxies)


def holder_of(token: str, rules: Rules) -> str | None:
    """The name of the person who has this token; None if the token is unknown.

    Always compares with all tokens, in constant time, so that the duration reveals nothing (timing attack).
    """
    given, holder = sha256(token.encode("utf-8", "replace")).digest(), None
    for person, expected in rules.tokens.items():
        if hmac.compare_digest(given, sha256(expected.encode()).digest()):
            holder = person
    return holder


def session_for(person: str, rules: Rules, now: float) -> str:
    """The value of the session cookie for a person.

    The session is valid for ``SESSION_S``, and only while the person's token stays in the settings.
    """
    ends = int(now) + SESSION_S
    return f"{person}.{ends}.{_mark(person, ends, rules.tokens[person])}"


def _mark(person: str, ends: int, token: str) -> str:
    return hmac.new(token.encode(), f"holdfast session of {person} until {ends}".encode(), sha256).hexdigest()


def _method(asked: Asked) -> Refused | None:
    if asked.kind == "websocket" or asked.method in ("GET", "HEAD", "POST"):
        return None
    return Refused(405, f"Method {_shown(asked.method)} is not served.", "Use GET, HEAD or POST.")


def _host(asked: Asked, rules: Rules) -> Refused | None:
    hosts = asked.all("host")
    if len(hosts) == 1 and _AUTHORITY.fullmatch(hosts[0]) and _name(hosts[0]) in rules.names:
        return None
    seen = f"The request is for host {_shown(hosts[0])}" if len(hosts) == 1 else f"The request names {len(hosts)} hosts"
    return Refused(
        403,
        f"{seen}, which is no name of this server. A foreign web page may be behind it.",
        f"Open the UI under {', '.join(sorted(rules.names))}, or add the name to `HOLDFAST_WEBSERVER__HOSTS`.",
    )


def _origin(asked: Asked, rules: Rules) -> Refused | None:
    origins = asked.all("origin")
    if not origins:
        return None
    match = _ORIGIN.fullmatch(origins[0]) if len(origins) == 1 else None
    if match is not None:
        authority = match[1].lower()
        if authority == asked.first("host").lower() or authority in rules.origins:
            return None
    return Refused(
        403,
        f"The request comes from a page of {_shown(', '.join(origins))}, not of this server.",
        "Where that is this server behind a proxy, add its name, with a port that the browser shows, to "
        "`HOLDFAST_WEBSERVER__HOSTS`.",
    )


def _site(asked: Asked) -> Refused | None:
    """Refuse requests that a page of another site makes; links from other sites that a person opens are allowed."""
    sites = asked.all("sec-fetch-site")
    if all(site in ("same-origin", "none") for site in sites):
        return None
    opens_a_page = (asked.first("sec-fetch-mode"), asked.first("sec-fetch-dest")) == ("navigate", "document")
    if asked.kind == "http" and asked.method in ("GET", "HEAD") and opens_a_page:
        return None
    return Refused(
        403,
        f"The browser says that another site's page makes this request (Sec-Fetch-Site: {_shown(', '.join(sites))}).",
        "Open the address in a tab of its own.",
    )


def _content(asked: Asked, rules: Rules) -> Refused | None:
    if asked.kind == "websocket":
        return None
    if asked.method in ("GET", "HEAD"):
        if asked.path == f"{rules.prefix}/graphql" and "text/html" not in asked.first("accept"):
            return Refused(405, "A GraphQL query in a URL is not served: it could be a change.", "POST it as JSON.")
        return None
    wanted = "application/x-www-form-urlencoded" if signs_in(asked, rules) else "application/json"
    given = asked.all("content-type")
    if len(given) == 1 and given[0].partition(";")[0].strip().lower() == wanted:
        return None
    seen = _shown(", ".join(given)) if given else "none"
    return Refused(415, f"The content type of the request is {seen}.", f"Send `Content-Type: {wanted}`.")


def _identified(asked: Asked, rules: Rules, now: float) -> Admitted | Refused:
    from_proxy = trusted(asked.peer, rules)
    if from_proxy:
        named = asked.all(rules.identity_header)
        if len(named) == 1 and 0 < len(named[0].strip()) <= NAME_MAX and named[0].isprintable():
            return Admitted(named[0].strip())
    scheme, _, token = asked.first("authorization").partition(" ")
    if scheme.lower() == "bearer":
        holder = holder_of(token.strip(), rules)
        if holder is not None:
            return Admitted(holder)
        return Refused(401, "The token of the request is not known.", "Use a token of `HOLDFAST_WEBSERVER__TOKENS`.")
    person = _of_session(asked, rules, now)
    if person is not None:
        return Admitted(person)
    ways = ["Send `Authorization: Bearer <token>`, or sign in with a browser."] if rules.tokens else []
    if rules.proxies:
        ways.append(f"Connect through a proxy of `HOLDFAST_WEBSERVER__PROXIES` that sends {rules.identity_header}.")
    missing = f"The proxy {asked.peer} names no person." if from_proxy else "The request does not say who it is from."
    return Refused(401, missing, " ".join(ways))


def _of_session(asked: Asked, rules: Rules, now: float) -> str | None:
    for header in asked.all("cookie"):
        for pair in header.split(";"):
            name, _, value = pair.strip().partition("=")
            person, _, rest = value.rpartition(".")[0].rpartition(".")
            token = rules.tokens.get(person)
            if name != COOKIE or token is None or not re.fullmatch(r"[0-9]{1,12}", rest):
                continue
            fits = hmac.compare_digest(value.rpartition(".")[2].encode(), _mark(person, int(rest), token).encode())
            if fits and int(rest) > now:
                return person
    return None


def _name(authority: str) -> str:
    """The host name or address in ``name:port``, in lower case and without brackets; empty if it is malformed."""
    match = _AUTHORITY.fullmatch(authority)
    return "" if match is None else match[1].lower().strip("[]")


def _shown(text: str) -> str:
    """Text from a request, escaped and shortened, so that it is safe in a response and a log."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")


def unguarded(host: str, settings: WebserverSettings) -> bool:
    """Whether other machines could use the UI without a token or sign-in, if the webserver listens on ``host``."""
    return not is_loopback(host) and not settings.asks
