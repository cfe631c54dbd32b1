"""The requests that may reach Dagster's webserver. Each kind of hostile request is refused with a reason."""

from __future__ import annotations

from typing import Literal

import pytest

from holdfast.infra.settings import SettingsInvalid, WebserverSettings, load_settings
from holdfast.orchestration.host.front.rules import (
    COOKIE,
    SESSION_S,
    SIGN_IN,
    Admitted,
    Asked,
    Refused,
    Rules,
    decide,
    holder_of,
    rules_of,
    session_for,
    unguarded,
)

NOW = 1_700_000_000.0
TOKEN, OTHER = "anna's token of the day", "a token of a program"
OPEN = rules_of(WebserverSettings())
NAMED = rules_of(WebserverSettings(hosts=("dagster.example.com", "Lab.example.com:8443")))
ASKING = rules_of(
    WebserverSettings(tokens={"anna.b@example.com": TOKEN.replace(" ", "-"), "ci": OTHER.replace(" ", "-")})
)
BEHIND = rules_of(WebserverSettings(host="0.0.0.0", hosts=("dagster.example.com",), proxies=("10.0.0.0/28", "::1")))
BEARER = f"Bearer {TOKEN.replace(' ', '-')}"
JSON = "application/json"


def asked(
    method: str = "GET",
    path: str = "/runs",
    *,
    kind: Literal["http", "websocket"] = "http",
    peer: str = "127.0.0.1",
    **headers: str | list[str],
) -> Asked:
    """A request from a browser on this machine, with further headers.

    In the name of a header, ``_`` stands for a dash.
    """
    given = {"host": "localhost:3000", **headers}
    if method == "POST" and "content_type" not in headers:
        given["content_type"] = JSON
    many = {name.replace("_", "-"): [value] if isinstance(value, str) else value for name, value in given.items()}
    return Asked(kind, method, path, peer, {name: values for name, values in many.items() if values})


def refusal(request: Asked, rules: Rules = OPEN) -> Refused:
    verdict = decide(request, rules, NOW)
    assert isinstance(verdict, Refused), verdict
    return verdict


@pytest.mark.parametrize(
    "request_",
    [
        asked(),
        asked("HEAD"),
        asked(host="127.0.0.1"),
        asked(host="[::1]:3000"),
        asked(host="LOCALHOST:8080"),
        asked("POST", "/graphql", origin="http://localhost:3000", sec_fetch_site="same-origin"),
        asked("POST", "/graphql", content_type="application/json; charset=utf-8"),
        asked(path="/graphql", accept="text/html,*/*"),
        asked(path="/graphql", kind="websocket", origin="http://localhost:3000"),
        asked(sec_fetch_site="none"),
        asked(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"),
    ],
)
def test_programs_and_pages_of_this_machine_pass(request_: Asked) -> None:
    assert decide(request_, OPEN, NOW) == Admitted(None)


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "host",
    [
        *("evil.example.com", "evil.example.com:3000", "localhost.evil.example.com", "127.0.0.1.nip.io", "10.0.0.1"),
        *("", "localhost:3000:1", "a@localhost", "localhost/", "[::1", "localhost ", "localhost:port", "[localhost]x"),
        [],
        ["localhost:3000", "evil.example.com"],
    ],
)
def test_a_foreign_host_is_refused(host: str | list[str], kind: Literal["http", "websocket"]) -> None:
    refused = refusal(asked(kind=kind, host=host))
    assert refused.status == 403
    assert "HOLDFAST_WEBSERVER__HOSTS" in refused.action


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example.com", "https://evil.example.com:3000", "null", "file://", "localhost:3000", ""),
        *("http://localhost", "http://localhost:8000", "http://localhost:3000@evil.com", "http://localhost:3000/x"),
        ["http://localhost:3000", "http://evil.example.com"],
    ],
)
def test_a_foreign_origin_is_refused(origin: str | list[str], method: str, kind: Literal["http", "websocket"]) -> None:
    headers = {"origin": origin or [""]}
    assert "of this server" in refusal(asked(method, kind=kind, **headers)).seen


def test_configured_names_are_allowed_with_the_port_that_they_have() -> None:
    def origin(text: str, host: str = "localhost:3000") -> object:
        return decide(asked("POST", "/graphql", host=host, origin=text), NAMED, NOW)

    assert origin("https://dagster.example.com") == Admitted(None)
    assert origin("https://dagster.example.com", "dagster.example.com") == Admitted(None)
    assert origin("http://dagster.example.com:3000", "dagster.example.com:3000") == Admitted(None)
    assert origin("https://lab.example.com:8443") == Admitted(None)
    assert isinstance(origin("https://dagster.example.com:8443"), Refused)
    assert isinstance(origin("https://lab.example.com"), Refused)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "strange", ["same-origin", "cross-site"]])
@pytest.mark.parametrize(
    "request_",
    [
        ("POST", "http", {}),
        ("GET", "http", {"sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}),
        ("GET", "http", {"sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}),
        ("POST", "http", {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}),
        ("GET", "websocket", {"sec_fetch_mode": "websocket"}),
    ],
)
def test_another_sites_page_may_only_be_a_link(
    site: str | list[str], request_: tuple[str, str, dict[str, str]]
) -> None:
    method, kind, headers = request_
    refused = refusal(asked(method, kind=kind, sec_fetch_site=site, **headers))  # type: ignore[arg-type]
    assert "Sec-Fetch-Site" in refused.seen


@pytest.mark.parametrize(
    "content_type",
    [
        *("text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", "multipart/form-data"),
        *("application/graphql", "application/jsonx", "", "text/plain;charset=application/json"),
        [],
        [JSON, "text/plain"],
    ],
)
@pytest.mark.parametrize("path", ["/graphql", "/report_asset_materialization/a", "/elsewhere", SIGN_IN])
def test_a_post_has_to_be_json(content_type: str | list[str], path: str) -> None:
    assert refusal(asked("POST", path, content_type=content_type or [])).status == 415


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_query_in_a_url_is_refused(method: str) -> None:
    """Dagster executes mutations in a GraphQL URL. A browser that loads this URL as an image sends no origin.

    So a request with a query in its URL is refused.
    """
    assert refusal(asked(method, "/graphql", accept="image/*")).status == 405
    below = rules_of(WebserverSettings(), prefix="/dagster")
    assert refusal(asked(method, "/dagster/graphql"), below).status == 405


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_other_methods_are_refused(method: str) -> None:
    assert refusal(asked(method)).status == 405


def test_a_token_says_who_asks() -> None:
    assert refusal(asked(), ASKING).status == 401
    assert refusal(asked(kind="websocket"), ASKING).status == 401
    assert decide(asked(authorization=BEARER), ASKING, NOW) == Admitted("anna.b@example.com")
    assert decide(asked(authorization=BEARER.replace("Bearer", "bearer")), ASKING, NOW) == Admitted(
        "anna.b@example.com"
    )
    for wrong in (BEARER[:-1], f"{BEARER}x", "Bearer ", BEARER.replace("Bearer", "Basic"), "Bearer \udcff"):
        assert refusal(asked(authorization=wrong), ASKING).status == 401
    assert holder_of("", ASKING) is None


def test_a_refused_token_is_not_repeated() -> None:
    refused = refusal(asked(authorization="Bearer not-a-token-that-is-known"), ASKING)
    assert "not-a-token" not in f"{refused.seen} {refused.action}"
    assert TOKEN.replace(" ", "-") not in repr(ASKING)


def test_a_foreign_page_is_refused_whatever_token_it_sends() -> None:
    assert refusal(asked(authorization=BEARER, host="evil.example.com"), ASKING).status == 403
    assert refusal(asked("POST", authorization=BEARER, origin="http://evil.example.com"), ASKING).status == 403


def test_a_session_ends_with_its_time_and_its_token() -> None:
    cookie = session_for("anna.b@example.com", ASKING, NOW)
    assert TOKEN.replace(" ", "-") not in cookie
    request = asked(cookie=f"theme=dark; {COOKIE}={cookie}")
    assert decide(request, ASKING, NOW) == Admitted("anna.b@example.com")
    assert decide(request, ASKING, NOW + SESSION_S - 1) == Admitted("anna.b@example.com")
    assert isinstance(decide(request, ASKING, NOW + SESSION_S), Refused)
    others = rules_of(WebserverSettings(tokens={"anna.b@example.com": "another-token-of-anna"}))
    assert isinstance(decide(request, others, NOW), Refused)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.replace("anna.b@example.com", "ci"),
        lambda value: value[:-1] + ("0" if value[-1] != "0" else "1"),
        lambda value: value.replace(str(int(NOW) + SESSION_S), str(int(NOW) + 2 * SESSION_S)),
        lambda value: value.rpartition(".")[0],
        lambda value: value.rpartition(".")[0] + ".é",
        lambda value: "....",
        lambda value: "",
    ],
)
def test_a_changed_session_is_refused(change) -> None:  # type: ignore[no-untyped-def]
    cookie = change(session_for("anna.b@example.com", ASKING, NOW))
    assert refusal(asked(cookie=f"{COOKIE}={cookie}"), ASKING).status == 401


def test_the_sign_in_form_needs_no_token_but_a_page_of_this_server() -> None:
    form = {"content_type": "application/x-www-form-urlencoded"}
    assert decide(asked("POST", SIGN_IN, **form), ASKING, NOW) == Admitted(None)
    assert refusal(asked("POST", SIGN_IN, origin="http://evil.example.com", **form), ASKING).status == 403
    assert refusal(asked("POST", SIGN_IN, **form), OPEN).status == 415
    assert refusal(asked("GET", SIGN_IN), ASKING).status == 401


def test_only_a_configured_proxy_names_a_person() -> None:
    def said(peer: str, name: str | list[str] = "Anna B") -> object:
        return decide(asked(peer=peer, host="dagster.example.com", x_forwarded_user=name), BEHIND, NOW)

    assert said("10.0.0.7") == Admitted("Anna B")
    assert said("::1") == Admitted("Anna B")
    assert said("::ffff:10.0.0.7") == Admitted("Anna B")
    for refused in (
        *(said(peer) for peer in ("10.0.0.16", "127.0.0.1", "", "a name")),
        *(said("10.0.0.7", name) for name in ("", "   ", "a\tb", "x" * 101, ["Anna", "Root"], [])),
    ):
        assert isinstance(refused, Refused)
        assert refused.status == 401
        assert "x-forwarded-user" in refused.action


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HOST", "0.0.0.0", "nobody is asked"),
        ("PATH_PREFIX", "dagster", "as /dagster"),
        ("PATH_PREFIX", "/dagster/", "as /dagster"),
        ("HOST", "192.168.1.5", "HOLDFAST_WEBSERVER__TOKENS"),
        ("HOSTS", '["https://dagster.example.com"]', "no name"),
        ("HOSTS", '["*"]', "no name"),
        ("TOKENS", '{"anna": "short"}', "16 visible"),
        ("TOKENS", '{"anna b": "0123456789abcdef"}', "character"),
        ("TOKENS", '{"anna": "0123456789abcdef", "ben": "0123456789abcdef"}', "same token"),
        ("PROXIES", '["proxy.example.com"]', "no address"),
        ("PROXIES", '["10.0.0.1/8"]', "no address"),
        ("IDENTITY_HEADER", "X User", "dashes"),
    ],
)
def test_settings_that_would_open_it_are_refused(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"HOLDFAST_WEBSERVER__{variable}", value)
    with pytest.raises(SettingsInvalid, match=said) as refused:
        load_settings()
    assert "0123456789abcdef" not in str(refused.value)


def test_the_address_that_it_listens_on_is_a_name_of_it() -> None:
    listening = rules_of(WebserverSettings(host="192.0.2.1", proxies=("10.0.0.7",)))
    refused = refusal(asked(host="192.0.2.1:3000"), listening)
    assert refused.status == 401
    assert refusal(asked(host="0.0.0.0:3000"), BEHIND).status == 403


def test_beyond_loopback_somebody_is_asked() -> None:
    assert unguarded("0.0.0.0", WebserverSettings())
    assert not unguarded("127.0.0.1", WebserverSettings())
    assert not unguarded("0.0.0.0", WebserverSettings(tokens={"anna": "0123456789abcdef"}))
    assert "0123456789abcdef" not in repr(WebserverSettings(tokens={"anna": "0123456789abcdef"}))
