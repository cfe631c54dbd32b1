"""The webserver's front in a real browser asks for a token once, and pages of other servers can't use the session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from holdfast.infra.settings import Settings, WebserverSettings, load_settings
from holdfast.orchestration.host import local

TOKEN = "0123456789abcdef-of-anna"
#: Requests that a hostile page sends while the user is signed in; the page's title shows the answers.
ATTACK = """<!doctype html><title>attack</title><script>
const target = "%s", body = '{"query": "mutation { setNuxSeen }"}';
const tries = [
  fetch(target + "/graphql", {method: "POST", body, credentials: "include", mode: "no-cors"})
    .then(() => "sent", () => "no"),
  fetch(target + "/graphql", {method: "POST", body, credentials: "include",
    headers: {"content-type": "application/json"}}).then(answer => "read " + answer.status, () => "no"),
  fetch(target + "/server_info", {credentials: "include"}).then(answer => "read " + answer.status, () => "no"),
  new Promise(told => { const line = new WebSocket(target.replace("http", "ws") + "/graphql", "graphql-ws");
    line.onopen = () => told("open"); line.onerror = () => told("no"); }),
  new Promise(told => { const image = new Image(); image.onload = () => told("seen"); image.onerror = () => told("no");
    image.src = target + "/favicon.png"; }),
];
Promise.all(tries).then(all => { document.title = all.join(", "); });
</script><iframe src="%s/"></iframe>"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path, webserver=WebserverSettings(tokens={"anna": TOKEN}))


@pytest.fixture
def url(settings: Settings) -> Iterator[str]:
    yield local.start_webserver(settings)
    local.stop(settings, local.WEBSERVER)


@pytest.fixture
def foreign(url: str) -> Iterator[str]:
    """A page on another port of this machine, which a browser treats as the same site."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write((ATTACK % (url, url)).encode())

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_person_signs_in_once_and_foreign_pages_get_nothing(
    page: Page, url: str, foreign: str, settings: Settings
) -> None:
    page.goto(f"{url}/assets")
    page.get_by_label("Token").fill("not the token of anybody")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("This token is not known.")).to_be_visible()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("fleet").first).to_be_visible(timeout=60_000)
    assert "Sign in" not in page.title()

    page.goto(foreign)
    expect(page).to_have_title("no, no, no, no, no", timeout=60_000)
    assert page.frames[1].evaluate("document.body.innerText") == ""
    refused = (settings.paths.logs / "dagster-webserver.log").read_text()
    assert f"comes from a page of '{foreign}'" in refused
    assert "change=setNuxSeen" not in refused
    assert TOKEN not in refused

    page.set_content(f'<a href="{url}/assets">the UI</a>')
    page.get_by_text("the UI").click()
    expect(page.get_by_text("fleet").first).to_be_visible(timeout=60_000)
