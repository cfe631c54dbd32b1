"""Serves a page under ``/state`` of Dagster's webserver: a form that reads one key of a processor's store.

    browser ──GET /state?processor=…&store=…&key=…──► webserver ──GET /stores/…──► a worker of this machine

The webserver asks any running worker, which finds the owner of the key. The access control of the webserver decides who
may open the page. The workers' tokens stay in the webserver.

Invariants:
    - The page only reads, and runs no script.
    - Texts of the state are escaped.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.assets.pages.metadata import STATE_PAGE
from holdfast.infra import http_request
from holdfast.orchestration.host.front.pages import HEADERS, STYLE
from holdfast.processors.engine.serving.endpoint_file import running_workers

#: Seconds that the webserver waits for a worker.
TIMEOUT_S = 10.0
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>State: Holdfast</title>
<meta name="viewport" content="width=device-width"><style>{style}body{{display:block;max-width:60em}}</style></head>
<body><h1>Read a key</h1><form method="get"><label>Processor <input name="processor" value="{processor}" required>
</label><label>Store or table <input name="store" value="{store}" required></label><label>Key
<input name="key" value="{key}" required></label><button>Read</button></form>{body}</body></html>"""


class WithStatePage:
    """ASGI application that serves the page under ``prefix`` plus ``STATE_PAGE``; other requests go to ``app``.

    Args:
        endpoints: The folder with the endpoint files of this machine's workers.
    """

    def __init__(self, app: ASGIApp, endpoints: Path, prefix: str = "") -> None:
        self._app, self._endpoints, self._at = app, endpoints, prefix + STATE_PAGE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD") or scope.get("path") != self._at:
            await self._app(scope, receive, send)
            return
        given = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        answer = await run_in_threadpool(self._answer, {name: values[0] for name, values in given.items()})
        await answer(scope, receive, send)

    def _answer(self, given: Mapping[str, str]) -> Response:
        processor, store, key = (given.get(name, "") for name in ("processor", "store", "key"))
        body = self._read(processor, store, key) if processor and store and key else ""
        shown = {name: html.escape(given.get(name, ""), quote=True) for name in ("processor", "store", "key")}
        return HTMLResponse(_PAGE.format(style=STYLE, body=body, **shown), 200, HEADERS)

    def _read(self, processor: str, store: str, key: str) -> str:
        workers = running_workers(self._endpoints, processor)
        if not workers:
            return _note(f"No worker of {processor} runs on this machine. `holdfast status` shows the workers.")
        for worker in workers.values():
            url = f"{worker.url}/stores/{quote(store, safe='')}/keys/{quote(key, safe='')}"
            headers = {"Authorization": f"Bearer {worker.state_token}"}
            try:
                answer = http_request.request("GET", url, timeout_s=TIMEOUT_S, headers=headers)
                return shown_answer(answer.status_code, answer.json())
            except (*http_request.FAILURES, RecursionError):
                continue
        return _note(f"No worker of {processor} answered. `holdfast status` says why.")


def shown_answer(status: int, answer: Mapping[str, Any]) -> str:
    """Returns a worker's answer as HTML: the values with their position, or the reason why there are none."""
    if "found" not in answer:
        return _note(f"{answer.get('error', 'The worker gave no reason.')} {answer.get('action', '')}")
    places = [answer["position"]] if answer["found"] else answer.get("positions", [])
    where = "".join(_note(_place(each)) for each in places)
    if not answer["found"]:
        return _note("The store does not have this key.") + where
    rows = [(html.escape(name), html.escape(text)) for name, text in _values(answer)]
    cells = "".join(f"<tr><td>{name}</td><td><pre>{text}</pre></td></tr>" for name, text in rows)
    return f"<table>{cells}</table>{where}"


def _values(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "row" in answer:
        return [("row", _text(answer["row"]))]
    if "windows" in answer:
        return [(f"{_time(each['start'])} to {_time(each['end'])}", _text(each["value"])) for each in answer["windows"]]
    coded = [(name, f"base64 {text}") for name, text in answer.get("state_base64", {}).items()]
    return [*((name, _text(value)) for name, value in answer.get("state", {}).items()), *coded]


def _place(position: Mapping[str, Any]) -> str:
    at = ", ".join(f"{topic} offset {offset:,}" for topic, offset in sorted(position["inputs"].items()))
    return (
        f"Partition {position['partition']}, up to {at}, committed at {_time(position['committed_at'] * 1000)}, read "
        f"from the {position['source']} (worker {position['worker']}), {position['age_s']:.2f} s old."
    )


def _time(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def _note(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"
