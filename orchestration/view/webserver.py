"""Asks Dagster's webserver of this home with GraphQL, because importing Dagster takes a command two seconds of CPU."""

from __future__ import annotations

from typing import Any

from holdfast.infra.http_request import FAILURES, post_json
from holdfast.infra.settings import Settings
from holdfast.orchestration.host import local

#: Timeout of each step of a GraphQL request, seconds.
TIMEOUT_S = 10.0


class NoAnswer(Exception):
    """The webserver does not run, does not answer, or refused the query or the token."""


def ask(settings: Settings, query: str, **variables: object) -> dict[str, Any]:
    """The field ``data`` of the webserver's answer to a GraphQL query.

    Raises:
        NoAnswer: There is no answer with data.
    """
    web = local.running(settings, local.WEBSERVER)
    if web is None:
        raise NoAnswer("no webserver runs")
    token = next(iter(settings.webserver.tokens.values()), None)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    document = {"query": query, "variables": variables}
    try:
        answer = post_json(f"{web.url}/graphql", document, timeout_s=TIMEOUT_S, headers=headers)
        return dict(answer.json()["data"])
    except (*FAILURES, KeyError, TypeError, RecursionError) as failure:
        raise NoAnswer(repr(failure)) from failure
