"""A web page with the counts of `word_count.py`, live: `uvicorn --app-dir docs/examples word_count_page:service`."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import ceil
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.routing import Route

from holdfast import AsyncStateClient, HoldfastError, StateAway

#: Words on the page, and seconds between two readings.
SHOWN, EVERY_S = 20, 0.5


class Counts:
    """The counts as they are now. One reading serves all browsers, however many there are."""

    def __init__(self, client: AsyncStateClient) -> None:
        self._client = client
        self._changed = asyncio.Condition()
        #: The words with the highest counts, and why no newer ones can be read; None if they can.
        self.words: list[tuple[str, int]] = []
        self.away: str | None = None

    async def follow(self) -> None:
        """Reads all counts again and again. While no worker answers, the last ones stay."""
        while True:
            before = (self.words, self.away)
            try:
                counts = [(str(row.key), row.state["n"]) async for row in self._client.keys("counts", page_size=1000)]
                self.words, self.away = sorted(counts, key=lambda each: (-each[1], each[0]))[:SHOWN], None
            except HoldfastError as refused:  # also a wrong name or token: the page says so, and the reading continues
                self.away = f"{refused.message} {refused.action}"
            if (self.words, self.away) != before:
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(EVERY_S)

    async def events(self) -> AsyncIterator[str]:
        """The counts as server-sent events: one at once, then one for each change."""
        while True:
            shown = (self.words, self.away)
            yield f"data: {json.dumps({'words': self.words, 'away': self.away})}\n\n"
            async with self._changed:
                await self._changed.wait_for(lambda shown=shown: (self.words, self.away) != shown)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """Opens one client and one reading for the life of the service."""
    async with AsyncStateClient("word-count", timeout_s=2) as client:
        counts = Counts(client)
        following = asyncio.create_task(counts.follow())
        yield {"client": client, "counts": counts}
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def page(request: Request) -> HTMLResponse:
    """The page."""
    return HTMLResponse(PAGE)


async def events(request: Request) -> StreamingResponse:
    """The stream that the page listens to."""
    return StreamingResponse(request.state.counts.events(), media_type="text/event-stream")


async def word(request: Request) -> JSONResponse:
    """One word, at most a second old."""
    asked = request.path_params["word"].lower()
    try:
        answer = await request.state.client.key("counts", asked, max_age=1)
    except StateAway as away:
        headers = {"Retry-After": str(ceil(away.retry_after_s))}
        return JSONResponse({"error": away.message}, status_code=503, headers=headers)
    return JSONResponse({"word": asked, "count": answer.state.get("n", 0), "age_s": answer.age_s})


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Words</title>
<style>
  body { font: 16px sans-serif; max-width: 40em; margin: 2em auto; }
  .bar { background: #0a7e8c; height: 1em; }
  td { padding: 2px 8px; }
  #away { color: #a00; }
</style>
<h1>Words</h1>
<p id="away"></p>
<table id="words"></table>
<script>
  const cell = (row, text) => { const made = row.insertCell(); made.textContent = text; return made; };
  new EventSource("events").onmessage = (event) => {
    const seen = JSON.parse(event.data);
    document.getElementById("away").textContent = seen.away ?? "";
    const table = document.getElementById("words");
    table.replaceChildren();
    for (const [word, count] of seen.words) {
      const row = table.insertRow();
      cell(row, word);
      cell(row, count);
      const bar = document.createElement("div");
      bar.className = "bar";
      bar.style.width = (300 * count / seen.words[0][1]) + "px";
      cell(row, "").append(bar);
    }
  };
</script>
"""

service = Starlette(
    lifespan=lifespan, routes=[Route("/", page), Route("/events", events), Route("/words/{word}", word)]
)
