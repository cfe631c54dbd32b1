"""Request heads are judged alike, whether or not their headers were seen before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.infra.settings import ServingSettings
from holdfast.processors.engine.serving.guard import Guard
from holdfast.processors.engine.serving.requests import (
    FORWARDED,
    Head,
    HeadersSeen,
    Refused,
    Rules,
    head_end,
    judge,
)
from tests.mechanics.tiers import examples

GUARD = Guard(ServingSettings(), "control-token-of-16")
HOST = "Host: localhost"


def rules() -> Rules:
    """Rules of a server that has seen no headers yet."""
    return Rules(GUARD, ("/status",), {"/state/read": 100}, lambda page: page.startswith("/stores"))


def head_of(line: str, *headers: str, end: str = "\r\n") -> bytes:
    return end.join([line, *headers, "", ""]).encode("latin-1")


#: Parts of heads, among them those that an attacker would choose.
METHODS = st.sampled_from(["GET", "HEAD", "POST", "get", "PUT", "GET ", " GET", "G\tET"])
TARGETS = st.sampled_from(
    ["/status", "/stores/s/keys/k?a=b", "//status", "/", "", "/stores/%ff", "http://x/", "/ü", "/a b", "*"]
)
VERSIONS = st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1 ", "", "HTTP/1.1\r", "http/1.1"])
HEADERS = st.sampled_from(
    [
        HOST,
        "Host: evil.example",
        "host: localhost",
        "Authorization: Bearer control-token-of-16",
        "Authorization: Bearer another",
        "Connection: close",
        "Connection: keep-alive, Close",
        "Connection: keep-alive",
        "Content-Length: 5",
        "Content-Length: x",
        "Transfer-Encoding: chunked",
        "Expect: 100-continue",
        f"{FORWARDED}: holdfast-a-0",
        f"{FORWARDED.lower()}: x",
        " folded",
        "no colon",
        ": no name",
        "X: ü",
        "X: \x00",
    ]
)
ENDS = st.sampled_from(["\r\n", "\n"])
BLOCKS = st.lists(HEADERS, max_size=4).map(tuple)


@settings(max_examples=examples(2_000, tested=25), deadline=None)
@given(
    heads=st.lists(
        st.builds(
            lambda method, target, version, headers, end: head_of(f"{method} {target} {version}", *headers, end=end),
            METHODS,
            TARGETS,
            VERSIONS,
            BLOCKS,
            ENDS,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_headers_that_were_seen_before_change_no_judgement(heads: list[bytes]) -> None:
    warm = rules()
    for head in [*heads, *reversed(heads), *heads]:
        end = head_end(head)
        assert end is not None
        assert judge(head[:end], warm) == judge(head[:end], rules())


def test_the_server_keeps_a_limited_number_of_header_blocks() -> None:
    seen = HeadersSeen()
    for number in range(HeadersSeen.MOST * 3):
        assert not isinstance(seen.parsed(head_of("GET / HTTP/1.1", HOST, f"X: {number}")), Refused)
        assert len(seen._seen) <= HeadersSeen.MOST


def test_headers_of_one_client_never_serve_another_one() -> None:
    warm = rules()
    with_token = head_of("GET /stores HTTP/1.1", HOST, "Authorization: Bearer secret")
    without = head_of("GET /stores HTTP/1.1", HOST)
    for _ in range(2):
        first, second = judge(with_token, warm), judge(without, warm)
        assert isinstance(first, Head)
        assert isinstance(second, Head)
        assert (first.authorization, second.authorization) == ("Bearer secret", "")


@pytest.mark.parametrize(
    ("line", "headers", "keeps"),
    [
        ("GET /stores HTTP/1.1", [], True),
        ("HEAD /stores HTTP/1.1", [], True),
        ("GET /stores HTTP/1.1", ["Connection: keep-alive"], True),
        ("GET /stores HTTP/1.1", ["Content-Length: 0"], True),
        ("GET /stores HTTP/1.0", ["Connection: keep-alive"], False),
        ("GET /stores HTTP/1.1", ["Connection: close"], False),
        ("GET /stores HTTP/1.1", ["Connection: Close"], False),
        ("GET /stores HTTP/1.1", ["Connection: keep-alive, close"], False),
        ("GET /stores HTTP/1.1", ["Connection: close, TE"], False),
        # The bytes of a body would be taken for the next request of the connection.
        ("GET /stores HTTP/1.1", ["Content-Length: 30"], False),
        ("GET /stores HTTP/1.1", ["Content-Length: many"], False),
        ("GET /stores HTTP/1.1", ["Transfer-Encoding: chunked"], False),
        ("HEAD /stores HTTP/1.1", ["Content-Length: 30"], False),
    ],
)
def test_when_a_connection_carries_another_request(line: str, headers: list[str], keeps: bool) -> None:
    warm = rules()
    for _ in range(2):
        judged = judge(head_of(line, HOST, *headers), warm)
        assert isinstance(judged, Head)
        assert judged.keeps is keeps


def test_a_forwarded_query_is_known_by_its_header() -> None:
    told = [judge(head_of("GET /stores HTTP/1.1", HOST, *more), rules()) for more in ([], [f"{FORWARDED}: a"])]
    assert [isinstance(each, Head) and each.is_forwarded for each in told] == [False, True]
