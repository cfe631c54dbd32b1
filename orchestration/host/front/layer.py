"""ASGI middleware before Dagster's application: admits or refuses each request, and serves the sign-in form.

Invariants:
    - A request reaches the application only after it is admitted. The body of a request is not read before admission.
    - An admitted request and its response pass unchanged, including streams and WebSockets. Only headers are added
      that prevent other sites from showing the page in a frame.
    - No token is written to a response, a log or a URL.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from holdfast.orchestration.host.front.rules import (
    COOKIE,
    SESSION_S,
    SIGN_IN,
    Asked,
    Refused,
    Rules,
    decide,
    holder_of,
    session_for,
    signs_in,
    trusted,
)

log = structlog.get_logger("webserver")

#: Key in the ASGI scope of a request, under which the name of the requesting person is stored.
WHO = "holdfast.who"
#: Maximum size of the sign-in form's body, bytes.
FORM_MAX = 4096
#: Minimum seconds between two log lines about refusals of the same kind, so that a hostile page can't fill the disk.
LOG_EVERY_S = 60.0

_ADDED = {
    "X-Frame-Options": "SAMEORIGIN",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_FORM_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    # Without Referrer-Policy, browsers would send the sign-in form with `Origin: null`, and this request is refused.
    "Referrer-Policy": "same-origin",
    **_ADDED,
}
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Sign in: Holdfast</title>{head}
<style>body{{font:16px sans-serif;max-width:26em;margin:15vh auto;padding:0 1em}}input,button{{font:inherit;width:100%;
padding:.5em;margin:.3em 0;box-sizing:border-box}}</style></head><body><h1>Holdfast</h1><p>{text}</p>
<form method="post" action="{action}"><input type="hidden" name="next" value="{next}">
<input type="password" name="token" autocomplete="current-password" aria-label="Token" autofocus>
<button>Sign in</button></form></body></html>"""


class Front:
    """ASGI application that applies ``rules`` to each request for ``app``; ``clock`` returns seconds since 1970."""

    def __init__(self, app: ASGIApp, rules: Rules, clock: Callable[[], float] = time.time) -> None:
        self._app, self._rules, self._clock = app, rules, clock
        self._logged: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request, WebSocket or lifespan event."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        asked = _asked(scope)
        verdict = decide(asked, self._rules, self._clock())
        if isinstance(verdict, Refused):
            await self._refuse(asked, verdict, (scope, receive, send))
        elif signs_in(asked, self._rules):
            answer = await self._signed_in(asked, Request(scope, receive))
            await answer(scope, receive, send)
        else:
            await self._app({**scope, WHO: verdict.who}, receive, _adding(send))

    async def _refuse(self, asked: Asked, refused: Refused, connection: tuple[Scope, Receive, Send]) -> None:
        self._log(asked, refused)
        scope, receive, send = connection
        if asked.kind == "http":
            await self._answer(asked, refused)(scope, receive, send)
            return
        socket = WebSocket(scope, receive, send)
        if "websocket.http.response" in scope.get("extensions", {}):
            await socket.send_denial_response(_plain(refused))
        else:
            await socket.close(1008)

    def _log(self, asked: Asked, refused: Refused) -> None:
        # Repeated refusals with the same `action` are not logged for a while. `action` is a fixed text. A hostile page
        # could vary `seen`, which quotes the request, and so fill the log.
        if self._is_news(refused.action):
            log.warning("webserver.refused", status=refused.status, seen=refused.seen, peer=asked.peer, path=asked.path)

    def _is_news(self, kind: str) -> bool:
        now = self._clock()
        news = now - self._logged.get(kind, float("-inf")) >= LOG_EVERY_S
        if news:
            self._logged[kind] = now
        return news

    def _answer(self, asked: Asked, refused: Refused) -> Response:
        wants_page = asked.method == "GET" and "text/html" in asked.first("accept")
        if refused.status == 401 and wants_page and self._rules.tokens:
            # A browser does not send a SameSite=Strict cookie when the user follows a link from another site. The form
            # reloads itself, and with the reload the browser sends the cookie.
            foreign = asked.first("sec-fetch-site") in ("cross-site", "same-site")
            return self._form(asked.path, refused.seen, reload=foreign)
        if asked.method == "POST":
            document = {"error": {"type": "Refused", "message": refused.seen, "action": refused.action}}
            return JSONResponse(document, refused.status, {**_ADDED, **_challenge(refused)})
        return _plain(refused)

    def _form(self, path: str, text: str, *, reload: bool = False) -> Response:
        page = _PAGE.format(
            head='<meta http-equiv="refresh" content="0">' if reload else "",
            text=html.escape(f"{text} Enter your token."),
            action=html.escape(self._rules.prefix + SIGN_IN, quote=True),
            next=html.escape(path, quote=True),
        )
        return HTMLResponse(page, 401, _FORM_HEADERS)

    async def _signed_in(self, asked: Asked, request: Request) -> Response:
        """The response to a posted sign-in form: session cookie and redirect; the form again if the token is wrong."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_MAX:
                return PlainTextResponse(f"The form is longer than {FORM_MAX} bytes.", 413, _ADDED)
        form = parse_qs(body.decode("utf-8", "replace"))
        goal = _local_path(form.get("next", [""])[0], self._rules.prefix)
        person = holder_of(form.get("token", [""])[0].strip(), self._rules)
        if person is None:
            if self._is_news("sign in"):
                log.warning("webserver.sign_in_failed", peer=asked.peer)
            return self._form(goal, "This token is not known.")
        log.info("webserver.signed_in", who=person, peer=asked.peer)
        answer = RedirectResponse(goal, 303, _ADDED)
        answer.set_cookie(
            COOKIE,
            session_for(person, self._rules, self._clock()),
            max_age=SESSION_S,
            path=self._rules.prefix or "/",
            secure=trusted(asked.peer, self._rules) and asked.first("x-forwarded-proto") == "https",
            httponly=True,
            samesite="strict",
        )
        return answer


def _asked(scope: Scope) -> Asked:
    headers: dict[str, list[str]] = {}
    for name, value in Headers(scope=scope).items():
        headers.setdefault(name.lower(), []).append(value)
    client = scope.get("client")
    return Asked(
        "websocket" if scope["type"] == "websocket" else "http",
        scope.get("method", "GET"),
        scope["path"],
        client[0] if client else "",
        headers,
    )


def _plain(refused: Refused) -> Response:
    text = f"{refused.seen}\nWhat to do: {refused.action}\n"
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", **_ADDED, **_challenge(refused)}
    return PlainTextResponse(text, refused.status, headers)


def _challenge(refused: Refused) -> Mapping[str, str]:
    return {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}


def _local_path(path: str, prefix: str) -> str:
    """The path to open after sign-in: ``path`` if it is on this server, otherwise the server's first page."""
    local = path.startswith(f"{prefix}/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if local else f"{prefix}/"


def _adding(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: Any = MutableHeaders(scope=message)
            for name, value in _ADDED.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
