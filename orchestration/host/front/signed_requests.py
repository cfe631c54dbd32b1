"""Dagster's webserver application, which tags runs, backfills and asset events with the name of the requesting person.

Each GraphQL mutation is logged with the person's name. A name that the request itself contains is replaced.
"""

from collections.abc import Callable, Mapping
from typing import Any

import structlog
from dagster._core.workspace.context import WorkspaceProcessContext, WorkspaceRequestContext
from dagster_webserver.webserver import DagsterWebserver
from graphene import Schema
from starlette.requests import HTTPConnection

from holdfast.assets.launched_by import USER_TAG
from holdfast.orchestration.host.front.layer import WHO

log = structlog.get_logger("webserver")

#: Dagster's tag with the name of the person who reported an asset event.
REPORTING_USER_TAG = "dagster/reporting_user"
#: GraphQL mutations that change no run, state or setting. They are not logged, because the UI sends them by itself.
_UNLOGGED = frozenset({"logTelemetry", "setNuxSeen", "sensorDryRun", "scheduleDryRun"})


class SignedContext(WorkspaceRequestContext):
    """Dagster's context of a request, with the name of the person who sent the request; empty if unknown."""

    who: str = ""

    def get_viewer_tags(self) -> dict[str, str]:
        """The tags for backfills that the request launches; Dagster calls this method."""
        return {USER_TAG: self.who} if self.who else {}

    def get_reporting_user_tags(self) -> dict[str, str]:
        """The tags for asset events that the request reports; Dagster calls this method."""
        return {REPORTING_USER_TAG: self.who} if self.who else {}


class SignedProcessContext(WorkspaceProcessContext):
    """Dagster's workspace, which creates a ``SignedContext`` for each request."""

    def create_request_context(self, source: object | None = None) -> SignedContext:
        """The context for one request; ``source`` is the request's HTTP connection."""
        context = super().create_request_context(source)
        acting = SignedContext(
            instance=context.instance,
            current_workspace=context.get_current_workspace(),
            process_context=self,
            version=context.version,
            source=source,
            read_only=context.read_only,
        )
        acting.who = who_asks(source) or ""
        return acting


class SignedWebserver(DagsterWebserver[SignedProcessContext, SignedContext]):
    """Dagster's webserver, which logs each GraphQL mutation and tags new runs with the person's name."""

    def build_graphql_schema(self) -> Schema:
        """Dagster's GraphQL schema, where the resolver of each mutation is wrapped for logs and tags."""
        schema = super().build_graphql_schema()
        changes = schema.graphql_schema.mutation_type
        assert changes is not None, "Dagster's schema has changes"
        for name, change in changes.fields.items():
            assert change.resolve is not None, f"Dagster resolves {name} by itself"
            change.resolve = _signing(name, change.resolve)
        return schema


def who_asks(source: object | None) -> str | None:
    """The name of the person who sent the HTTP request ``source``; None if the settings require no sign-in."""
    return source.scope.get(WHO) if isinstance(source, HTTPConnection) else None


def signed(arguments: Mapping[str, Any], who: str) -> dict[str, Any]:
    """The arguments of a GraphQL mutation, where runs to launch are tagged with ``who`` and no other name."""
    found = dict(arguments)
    if found.get("executionParams"):
        found["executionParams"] = _execution(found["executionParams"], who)
    if found.get("executionParamsList"):
        found["executionParamsList"] = [_execution(each, who) for each in found["executionParamsList"]]
    if found.get("reexecutionParams"):
        again = found["reexecutionParams"]
        found["reexecutionParams"] = {**again, "extraTags": _tags(again.get("extraTags"), who)}
    return found


def _execution(parameters: Mapping[str, Any], who: str) -> dict[str, Any]:
    metadata = parameters.get("executionMetadata") or {}
    return {**parameters, "executionMetadata": {**metadata, "tags": _tags(metadata.get("tags"), who)}}


def _tags(tags: Any, who: str) -> list[dict[str, str]]:
    return [*(each for each in tags or () if each["key"] != USER_TAG), {"key": USER_TAG, "value": who}]


def _signing(name: str, resolve: Callable[..., Any]) -> Callable[..., Any]:
    def changed(root: Any, info: Any, **arguments: Any) -> Any:
        who = info.context.who
        if name not in _UNLOGGED:
            log.info("webserver.change", change=name, who=who or "anyone on this machine")
        return resolve(root, info, **(signed(arguments, who) if who else arguments))

    return changed
