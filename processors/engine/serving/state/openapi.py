"""The OpenAPI document of the routes of state. It is also the list of the parameters that each route takes.

``routes`` refuses a parameter that the document does not have for the route. So a mistyped parameter is an error, and
never an answer to another question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.processors.engine.queries.demand import PARTITION_MAX, SECONDS_MAX, WAIT_MAX_S, WAIT_S
from holdfast.processors.engine.queries.service import KEYS_MAX, LIMIT, LIMIT_MAX
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS

#: The path under which the document is served.
OPENAPI = "/openapi.json"
_SECONDS = {"type": "number", "minimum": 0, "maximum": SECONDS_MAX}
_MILLISECONDS = {"type": "integer", "minimum": 0, "maximum": EVENT_TIME_END_MS}
_TEXT = {"type": "string"}
_TRUE_FALSE = {"type": "string", "enum": ["true", "false"], "default": "false"}

#: Each parameter in the query, by name: its schema and its description.
_PARAMETERS: Mapping[str, tuple[dict[str, Any], str]] = {
    "after": (
        {"type": "array", "items": {"type": "string", "pattern": "^[^:]+:[0-9]+:[0-9]+$"}},
        "Positions that the answer's commit must have: `<topic>:<partition>:<next offset>`, separated by commas.",
    ),
    "encoding": (
        {"type": "string", "enum": ["text", "base64"], "default": "text"},
        "How the keys of the query are written. With `base64`, they are the bytes of the keys in Kafka.",
    ),
    "end": (_TEXT, "The first key behind the range."),
    "from": (
        {**_MILLISECONDS, "default": 0},
        "Only windows that overlap the times from here on, in milliseconds since 1970.",
    ),
    "key": (
        {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": KEYS_MAX},
        "A message key; repeat the parameter for several keys. Without it, the answer is a page of all keys.",
    ),
    "limit": (
        {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT},
        "Maximum number of entries of one key, or of keys in a page.",
    ),
    "max_age": (_SECONDS, "Maximum age of the answer in seconds, as `age_s` of its position."),
    "page": (_TEXT, "`next` of the last answer, unchanged. Without it, the answer is the first page."),
    "partition": (
        {"type": "integer", "minimum": 0, "maximum": PARTITION_MAX},
        "The only partition to look in. Without it, the key decides.",
    ),
    "prefix": (_TEXT, "Only keys that begin with this text."),
    "raw": (_TRUE_FALSE, "Whether the answer is the stored value alone. A key needs `state_key` beside it."),
    "redirect": (_TRUE_FALSE, "Whether a worker without the state redirects to the owner, instead of asking it."),
    "stale_ok": (_SECONDS, "Seconds by which the answer may be behind. A standby then answers, too."),
    "start": (_TEXT, "The first key of the range."),
    "state_key": (_TEXT, "The only state key of the answer."),
    "to": (
        {**_MILLISECONDS, "default": EVENT_TIME_END_MS},
        "Only windows that overlap the times before this one, in milliseconds since 1970.",
    ),
    "wait": (
        {"type": "number", "minimum": 0, "maximum": WAIT_MAX_S, "default": WAIT_S},
        "Seconds that the query may wait until the worker can answer as demanded.",
    ),
}
_DEMANDS = ("after", "max_age", "stale_ok", "wait")
_OF_ONE = ("encoding", "partition", "redirect", *_DEMANDS)
_RANGE = ("prefix", "start", "end", "limit", "page")


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


_COUNT = {"type": "integer", "minimum": 0}
_ANY: dict[str, Any] = {}
_POSITION = _ref("schemas", "Position")
_KEY = {
    "key": {"type": ["string", "number"], "description": "The key, as the store's deserializer reads it."},
    "key_base64": {
        "type": "string",
        "contentEncoding": "base64",
        "description": "The key's bytes, if no text says them exactly.",
    },
}
_ENTRIES = {
    "state": {"type": "object", "additionalProperties": True, "description": "The values by state key."},
    "state_base64": {
        "type": "object",
        "additionalProperties": {"type": "string", "contentEncoding": "base64"},
        "description": "The values that `set_bytes` stored, by state key.",
    },
    "windows": _list(_ref("schemas", "Window")),
    "row": {"description": "The row of a table."},
}
_NEXT = {"type": "string", "description": "`page` of the query for further entries; absent if there are none."}

_SCHEMAS: Mapping[str, Any] = {
    "Position": _object(
        "partition inputs after committed_at age_s source worker",
        partition={**_COUNT, "description": "The task's partition."},
        inputs={
            "type": "object",
            "additionalProperties": _COUNT,
            "description": "The next offset of each input topic. The answer has the effects of all earlier records.",
        },
        after={"type": "string", "description": "The position as the parameter `after` of a later query."},
        committed_at={"type": "number", "description": "Seconds since 1970, just before the commit."},
        age_s={"type": "number", "description": "Seconds since the worker last knew that no newer commit exists."},
        source={"type": "string", "enum": ["owner", "standby"]},
        worker={"type": "string", "description": "The slot of the worker that has read the state."},
    ),
    "Window": _object(
        "start end value",
        start={"type": "integer", "description": "Milliseconds since 1970, inclusive."},
        end={"type": "integer", "description": "Milliseconds since 1970, exclusive."},
        value=_ANY,
    ),
    "Stores": _object(
        "stores",
        stores=_list(
            _object(
                "store kind inputs windows partitions here",
                store=_TEXT,
                kind=_TEXT,
                inputs=_list(_TEXT),
                windows={"type": "boolean"},
                partitions=_COUNT,
                here={**_list(_COUNT), "description": "The partitions whose state this worker has now."},
            )
        ),
    ),
    "Key": _object(
        "store partition found position",
        store=_TEXT,
        partition=_COUNT,
        found={"const": True},
        **_KEY,
        **_ENTRIES,
        next=_NEXT,
        position=_POSITION,
    ),
    "Absent": _object(
        "store key found positions",
        store=_TEXT,
        key={"type": "string", "description": "The key of the query."},
        found={"const": False},
        position=_POSITION,
        positions={**_list(_POSITION), "description": "The position of each partition that was read."},
    ),
    "Keys": _object(
        "store rows", store=_TEXT, rows=_list({"anyOf": [_ref("schemas", "Key"), _ref("schemas", "Absent")]})
    ),
    "Page": _object(
        "store partition rows position",
        store=_TEXT,
        partition=_COUNT,
        rows=_list({"type": "object", "properties": {**_KEY, **_ENTRIES}}),
        next={**_NEXT, "description": "`page` of the next query, also if this page has no rows; absent at the end."},
        position=_POSITION,
    ),
    "Estimates": _object(
        "store estimates stores",
        store=_TEXT,
        estimates=_list(_object("partition records bytes", partition=_COUNT, records=_COUNT, bytes=_COUNT)),
        stores={**_list(_TEXT), "description": "The stores that the estimates are about, all together."},
    ),
    "GlobalRow": _object("table key found row", table=_TEXT, key=_TEXT, found={"type": "boolean"}, row=_ANY),
    "Owner": _object("owner", owner={"type": "string", "format": "uri"}),
    "Error": _object(
        "error",
        error={"type": "string", "description": "What was seen, and what was expected."},
        action={"type": "string", "description": "The one thing to do."},
        fields={"type": "object", "additionalProperties": True, "description": "The facts of the error."},
    ),
}


def _json(description: str, *schemas: str) -> dict[str, Any]:
    schema = (
        _ref("schemas", schemas[0]) if len(schemas) == 1 else {"anyOf": [_ref("schemas", each) for each in schemas]}
    )
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_RETRY_AFTER = {
    "Retry-After": {
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
        "description": "Seconds after which the query may succeed.",
    }
}
_RESPONSES: Mapping[str, Any] = {
    "Redirect": {
        **_json("Another worker has the state, and the query says `redirect=true`.", "Owner"),
        "headers": {"Location": {"required": True, "schema": _TEXT, "description": "The same query at this worker."}},
    },
    "Wrong": _json("The query is wrong. The same query fails again.", "Error"),
    "Unauthorized": _json("The token is missing or wrong.", "Error"),
    "Absent": _json("The key is not there (`found` is false), or there is no such store (`error`).", "Absent", "Error"),
    "Unknown": _json("There is no such store.", "Error"),
    "NoRow": _json("The key has no row (`found` is false), or there is no such table (`error`).", "GlobalRow", "Error"),
    "Misdirected": _json("A worker has forwarded the query to one that does not have the task.", "Error"),
    "Away": {
        **_json("No worker can answer now: the reason is in `error`. It never means that a key is not there.", "Error"),
        "headers": _RETRY_AFTER,
    },
    "TooMany": {**_json("The worker got more queries than its limit allows.", "Error"), "headers": _RETRY_AFTER},
}
_ERRORS = {
    "400": _ref("responses", "Wrong"),
    "401": _ref("responses", "Unauthorized"),
    "429": _ref("responses", "TooMany"),
    "503": _ref("responses", "Away"),
}
_OF_TASKS = {
    **_ERRORS,
    "307": _ref("responses", "Redirect"),
    "404": _ref("responses", "Absent"),
    "421": _ref("responses", "Misdirected"),
}
_RAW = {
    "headers": {
        "Holdfast-Position": {
            "description": "With `raw=true`: the position of the value.",
            "content": {"application/json": {"schema": _POSITION}},
        }
    },
    "content": {
        "application/json": {
            "schema": {"anyOf": [_ref("schemas", "Key"), {"description": "With `raw=true`: the value."}]}
        },
        "application/octet-stream": {"schema": {"description": "With `raw=true`: the bytes of `set_bytes`."}},
    },
}


def _get(name: str, summary: str, answer: Mapping[str, Any], takes: Sequence[str], errors: Mapping[str, Any]) -> Any:
    parameters = [_ref("parameters", each) for each in takes]
    return {
        "get": {
            "operationId": name,
            "summary": summary,
            "parameters": parameters,
            "responses": {"200": answer, **errors},
        }
    }


def _path(path: str, route: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the parameters in the path to a route."""
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    told = [{"name": each, "in": "path", "required": True, "schema": _TEXT} for each in names]
    return {**route, **({"parameters": told} if told else {})}


_ONE = _json("The key, with its entries and its position.", "Key")
_PATHS: Mapping[str, Any] = {
    "/stores": _get("stores", "The stores of the processor", _json("The stores.", "Stores"), (), _ERRORS),
    "/stores/{store}/keys/{key}": _get(
        "key",
        "One key: its whole state, one state key, a prefix, or a range of state keys",
        {**_ONE, **_RAW},
        ("state_key", "raw", *_RANGE, *_OF_ONE),
        _OF_TASKS,
    ),
    "/stores/{store}/keys": _get(
        "keys",
        "Several keys, or a page of all keys",
        _json("The keys that the query names, or a page of keys.", "Keys", "Page"),
        ("key", "state_key", *_RANGE, *_OF_ONE),
        _OF_TASKS,
    ),
    "/stores/{store}/windows/{key}": _get(
        "windows", "The windows of one key, oldest first", _ONE, ("from", "to", "limit", "page", *_OF_ONE), _OF_TASKS
    ),
    "/stores/{store}/count": _get(
        "count",
        "An estimate of the records that this worker has of a store",
        _json("RocksDB's estimates.", "Estimates"),
        (),
        {**_ERRORS, "404": _ref("responses", "Unknown")},
    ),
    "/tables/{table}/{key}": _get("row", "The row of a table", {**_ONE, **_RAW}, ("raw", *_OF_ONE), _OF_TASKS),
    "/global-tables/{topic}/{key}": _get(
        "global_row",
        "The row of a global table",
        _json("The row.", "GlobalRow"),
        ("encoding", "wait"),
        {**_ERRORS, "404": _ref("responses", "NoRow")},
    ),
    OPENAPI: {
        "get": {
            "operationId": "openapi",
            "summary": "This document; needs no token",
            "security": [],
            "responses": {
                "200": {"description": "The document.", "content": {"application/json": {"schema": {"type": "object"}}}}
            },
        }
    },
}

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "State of a Holdfast processor",
        "version": "1",
        "description": "Reads of committed state. Every worker of the processor answers for every key.",
    },
    "security": [{"state": []}],
    "paths": {path: _path(path, route) for path, route in _PATHS.items()},
    "components": {
        "securitySchemes": {
            "state": {
                "type": "http",
                "scheme": "bearer",
                "description": "The token of state, the token of the store, or the worker's token of control.",
            }
        },
        "parameters": {
            name: {
                "name": name,
                "in": "query",
                "description": description,
                "schema": schema,
                # ``key`` is repeated, and ``after`` has commas.
                **({"style": "form", "explode": name == "key"} if schema["type"] == "array" else {}),
            }
            for name, (schema, description) in _PARAMETERS.items()
        },
        "responses": _RESPONSES,
        "schemas": _SCHEMAS,
    },
}

_TAKES = [
    (path.split("/")[1:], frozenset(each["$ref"].rpartition("/")[2] for each in route["get"].get("parameters", ())))
    for path, route in DOCUMENT["paths"].items()
]


def parameters_of(parts: Sequence[str]) -> frozenset[str] | None:
    """Returns the parameters that a route takes; None if there is no such route.

    Args:
        parts: The parts of the path, decoded.
    """
    for path, takes in _TAKES:
        if len(path) == len(parts) and all(
            each == part or each[0] == "{" for each, part in zip(path, parts, strict=True)
        ):
            return takes
    return None
