"""Each request of the page about queries gets the answer that the page shows, from the page's own application."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast import InMemoryCluster
from holdfast.processors.engine.queries.demand import WAIT_MAX_S, WAIT_S
from holdfast.processors.engine.queries.entries import ENTRIES_MAX
from holdfast.processors.engine.queries.service import KEYS_MAX, LIMIT, LIMIT_MAX
from holdfast.processors.engine.runtime.ownership.freshness import GAP_S_MAX
from holdfast.processors.engine.serving.connection import NEXT_REQUEST_S
from holdfast.processors.engine.serving.connections import AT_ONCE_MAX
from holdfast.processors.engine.serving.query_lane import THREADS_MAX
from holdfast.processors.engine.serving.state.openapi import DOCUMENT
from holdfast.processors.engine.serving.state.peers import FORWARD_TIMEOUT_S
from tests.docs.pages import PROJECT, code_blocks
from tests.parts.state_in_memory import Asked, ask_worker

PAGE = "docs/queries.md"
MESSAGES = [(b"alice", 3), (b"bob", 5), (b"alice", 4)]


def requests() -> Iterator[tuple[str, Any]]:
    """The target of each request on the page, with the answer that follows it."""
    for block in code_blocks("console"):
        if block.page == PAGE:
            for typed in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
                line, _, answer = typed.partition("\n")
                (target,) = re.findall(r'"\$WORKER(/[^"]*)"', line)
                yield target, json.loads(answer)


def test_the_page_shows_what_a_worker_answers(tmp_path: Path) -> None:
    (block,) = [block for block in code_blocks("python") if block.page == PAGE]
    names: dict[str, Any] = {}
    exec(compile(block.text, block.name, "exec"), names)
    cluster = InMemoryCluster()
    cluster.create_topic("orders")
    for key, amount in MESSAGES:
        cluster.produce("orders", json.dumps({"amount": amount}).encode(), key)
    shown = list(requests())

    def ask(asked: Asked) -> None:
        for target, answer in shown:
            assert asked.json(target)[1] == answer, target
        away = asked.answer(shown[-1][0])
        assert (away.code, dict(away.headers)) == (503, {"Retry-After": "1"})

    ask_worker(names["app"], cluster, tmp_path, ask, processed=len(MESSAGES))
    assert len(shown) >= 6


def test_the_page_has_all_routes_and_the_limits_of_the_code() -> None:
    text = (PROJECT / PAGE).read_text(encoding="utf-8")
    named = {path.partition("?")[0] for path in re.findall(r"`GET (/\S+)`", text)}
    assert named == set(DOCUMENT["paths"])
    codes = set(re.findall(r"^\| (\d{3}) \|", text, re.M))
    assert codes == {code for route in DOCUMENT["paths"].values() for code in route["get"]["responses"]}
    for told in (
        f"`limit`: {LIMIT}; at most {LIMIT_MAX:,}",
        f"several keys, at most {KEYS_MAX}",
        f"{ENTRIES_MAX:,} and about 1 MiB",
        f"{WAIT_S:g} s without it, at most {WAIT_MAX_S:g} s",
        f"{THREADS_MAX} threads; {FORWARD_TIMEOUT_S:g} s and `wait`",
        f"{AT_ONCE_MAX}, {NEXT_REQUEST_S:g} s",
        f"at least every {GAP_S_MAX:g} s, or half of the group's session timeout",
    ):
        assert told in text
