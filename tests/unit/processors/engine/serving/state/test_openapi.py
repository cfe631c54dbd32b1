"""The OpenAPI document says what the routes of state do: their paths, parameters, bounds, and answers."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from holdfast import Application, InMemoryCluster, Sum
from holdfast.processors.engine.serving.requests import FORWARDED, Answer
from holdfast.processors.engine.serving.state import routes
from holdfast.processors.engine.serving.state.openapi import DOCUMENT, OPENAPI, parameters_of
from holdfast.processors.engine.serving.state.routes import StateRoutes
from tests.parts.state_in_memory import Asked, ask_worker, other_worker

PARAMETERS = DOCUMENT["components"]["parameters"]
#: The parameters that are parsed for each route, also where a route does not take them.
ALWAYS_READ = {"after", "max_age", "redirect", "stale_ok", "wait"}
#: A request for each route that answers with 200.
REQUESTS = {
    "/stores": "/stores",
    "/stores/{store}/keys/{key}": "/stores/totals/keys/alice?limit=5",
    "/stores/{store}/keys": "/stores/totals/keys?key=alice&key=nobody",
    "/stores/{store}/windows/{key}": "/stores/minutes/windows/alice?limit=5",
    "/stores/{store}/count": "/stores/totals/count",
    "/tables/{table}/{key}": "/tables/products/alice?wait=0",
    "/global-tables/{topic}/{key}": "/global-tables/planes/alice?wait=0",
    OPENAPI: OPENAPI,
}
#: Requests that read the parameters of a route in its other uses.
MORE = ["/stores/totals/keys?limit=5", "/stores/totals/keys/alice?state_key=total&raw=true"]


def build() -> Application:
    """An application with each kind of store that can be asked."""
    app = Application("localhost:1", consumer_group="shop", loglevel=None, auto_offset_reset="earliest")
    app.global_table(app.topic("planes"))
    app.table(app.topic("products"), name="products")
    orders = app.dataframe(app.topic("orders", key_deserializer="str"))

    def total(value: dict[str, int], state: Any) -> dict[str, int]:
        state.set("total", state.get("total", 0) + value["amount"])
        state.set_bytes("seen", b"\xff")
        return value

    orders.apply(total, stateful=True, store="totals")
    orders.tumbling_window(60_000, name="minutes").agg(total=Sum("amount")).current()
    return app


def filled() -> InMemoryCluster:
    """A cluster with one message of `alice` in each topic."""
    cluster = InMemoryCluster()
    for topic in ("planes", "products", "orders"):
        cluster.create_topic(topic, partitions=2)
        cluster.produce(topic, b'{"amount": 3}', b"alice")
    return cluster


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Answer, set[str]]]:
    """The answer to each request, and the names of the parameters that the routes have read for it."""
    found: dict[str, tuple[Answer, set[str]]] = {}

    def ask(asked: Asked) -> None:
        for target in (*REQUESTS.values(), *MORE):
            found[target] = recorded(asked, target)

    ask_worker(build(), filled(), tmp_path_factory.mktemp("home"), ask, processed=2)
    return found


class Recorded(dict[str, list[str]]):
    """The parameters of a query, with the names that were read."""

    def __init__(self, given: dict[str, list[str]], read: set[str]) -> None:
        super().__init__(given)
        self.read = read

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> list[str]:
        self.read.add(name)
        return super().__getitem__(name)


def recorded(asked: Asked, target: str) -> tuple[Answer, set[str]]:
    """Ask, and record which parameters the routes read."""
    read: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "parse_qs", lambda *given, **more: Recorded(parse_qs(*given, **more), read))
        return asked.answer(target), read


def path_of(target: str) -> str:
    """The path of the document that a target belongs to."""
    parts = target.partition("?")[0].split("/")
    paths: list[str] = [path for path in DOCUMENT["paths"] if len(path.split("/")) == len(parts)]
    return next(
        path
        for path in paths
        if all(name[:1] == "{" or name == part for name, part in zip(path.split("/"), parts, strict=True))
    )


def taken(path: str) -> set[str]:
    """The parameters in the query that the document has for a path."""
    return {each["$ref"].rpartition("/")[2] for each in DOCUMENT["paths"][path]["get"].get("parameters", [])}


def test_the_document_has_the_routes_of_the_code() -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(StateRoutes._routed)))
    found = {OPENAPI}
    for case in [case for node in ast.walk(tree) if isinstance(node, ast.Match) for case in node.cases]:
        if isinstance(case.pattern, ast.MatchSequence):
            parts = [
                f"{{{each.name}}}" if isinstance(each, ast.MatchAs) else ast.literal_eval(each.value)  # type: ignore[attr-defined]
                for each in case.pattern.patterns
            ]
            found.add("/" + "/".join(parts))
    assert found == set(DOCUMENT["paths"]) == set(REQUESTS)


def test_each_parameter_in_a_path_is_documented() -> None:
    for path, route in DOCUMENT["paths"].items():
        named = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        assert [each["name"] for each in route.get("parameters", [])] == named


def test_the_document_has_the_parameters_that_the_code_reads(answers: dict[str, tuple[Answer, set[str]]]) -> None:
    read: dict[str, set[str]] = {path: set() for path in DOCUMENT["paths"]}
    for target, (_, names) in answers.items():
        read[path_of(target)] |= names

    for path, names in read.items():
        expected = taken(path)
        assert names - (ALWAYS_READ - expected) == (expected if names else set()), path
    assert {name for names in read.values() for name in names} == set(PARAMETERS)


@pytest.mark.slow
def test_a_worker_without_the_task_redirects_or_refuses(tmp_path: Path) -> None:
    cluster = filled()
    other_worker(cluster, "shop", ["products", "orders"], "127.0.0.1:1")

    def ask(asked: Asked) -> None:
        stores = asked.json("/stores")[1]["stores"]
        (here,) = next(each["here"] for each in stores if each["store"] == "totals")
        away = 1 - here
        for path, target in REQUESTS.items():
            if "redirect" not in taken(path) or "key=" in target:
                continue
            where = f"{target.partition('?')[0]}?partition={away}&stale_ok=9"
            code, body = asked.json(where)
            assert (code, "did not answer" in body["error"]) == (503, True), body
            assert int(asked.answer(where).headers["Retry-After"]) >= 1
            assert asked.json(where, **{FORWARDED: "holdfast-shop-other-0"})[0] == 421
            moved = asked.answer(f"{where}&redirect=true")
            assert moved.code == 307
            assert (
                moved.headers["Location"] == f"http://127.0.0.1:1{where.partition('?')[0]}?stale_ok=9&partition={away}"
            )
            fits(path, moved)
        moved = asked.answer(f"/stores/totals/keys?page={away}.&redirect=true")
        assert moved.code == 307

    ask_worker(build(), cluster, tmp_path, ask, processed=1)


@pytest.mark.slow
def test_a_worker_without_tasks_refuses_with_the_seconds_to_wait(tmp_path: Path) -> None:
    def ask(asked: Asked) -> None:
        for path, target in REQUESTS.items():
            if "redirect" in taken(path):
                answer = asked.answer(target)
                assert (answer.code, answer.headers["Retry-After"]) == (503, "1")
                fits(path, answer)

    ask_worker(build(), filled(), tmp_path, ask)


@pytest.mark.slow
def test_what_is_refused_is_in_the_document(tmp_path: Path) -> None:
    def ask(asked: Asked) -> None:
        for path, target in REQUESTS.items():
            joined = "&" if "?" in target else "?"
            if path != OPENAPI:
                assert asked.json(target, token="another token")[0] == 401
                fits(path, asked.answer(target, token="another token"))
                wrong = asked.answer(f"{target}{joined}nosuch=1")
                assert (wrong.code, "has no parameter 'nosuch'" in str(wrong.body)) == (400, True)
                fits(path, wrong)
            for name in {*PARAMETERS} - taken(path) - {OPENAPI}:
                text = {"after": "orders:0:0", "raw": "false"}.get(name, "1")
                if path != OPENAPI:
                    assert asked.json(f"{target}{joined}{name}={text}")[0] == 400, (path, name)
            if "{" in path:
                unknown = target.replace("totals", "no").replace("minutes", "no").replace("products", "no")
                answer = asked.answer(unknown.replace("planes", "no"))
                assert (answer.code, "error" in answer.body) == (404, True)
                fits(path, answer)
        absent = asked.answer("/stores/totals/keys/nobody")
        assert absent.code == 404
        fits("/stores/{store}/keys/{key}", absent)
        fits("/global-tables/{topic}/{key}", asked.answer("/global-tables/planes/nobody"))

    ask_worker(build(), filled(), tmp_path, ask, processed=2)


def edges() -> Iterator[tuple[str, str, bool]]:
    """Values at the documented bounds and beyond: name, text, and whether the text is taken."""
    for name, told in PARAMETERS.items():
        schema = told["schema"]
        if "minimum" in schema:
            least, most = schema["minimum"], schema["maximum"]
            yield from ((name, f"{each:.0f}", True) for each in (least, most))
            yield from ((name, f"{each:.0f}", False) for each in (least - 1, most + 1))
            yield from ((name, text, False) for text in ("many", "nan", "inf", "", "0" * 30 + "1", f"1{'0' * 5_000}"))
        if "enum" in schema:
            yield from ((name, each, True) for each in schema["enum"])
            yield name, "nosuch", False


def test_the_bounds_of_the_document_are_those_of_the_code(tmp_path: Path) -> None:
    def ask(asked: Asked) -> None:
        for name, text, is_taken in edges():
            path = next(path for path in reversed(REQUESTS) if name in taken(path))
            target = REQUESTS[path].partition("?")[0]
            if name in ("max_age", "stale_ok", "wait") and set(text) <= {"0", "1"} and len(text) == 31:
                continue  # a float has leading zeros
            target = target.replace("alice", "YWxpY2U=") if text == "base64" else target
            code, body = asked.json(f"{target}?{name}={text}")
            # The topics of the test have two partitions, so another refusal follows the greatest number.
            refused = code == 400 and "the store has the partitions" not in body["error"]
            assert refused is not is_taken, (name, text, code, body)
        keys = PARAMETERS["key"]["schema"]["maxItems"]
        assert asked.json("/stores/totals/keys?" + "&".join(["key=alice"] * keys))[0] == 200
        assert asked.json("/stores/totals/keys?" + "&".join(["key=alice"] * (keys + 1)))[0] == 400

    ask_worker(build(), filled(), tmp_path, ask, processed=2)


@pytest.mark.slow
def test_the_answers_fit_their_schemas(answers: dict[str, tuple[Answer, set[str]]]) -> None:
    for target, (answer, _) in answers.items():
        assert answer.code == 200, (target, answer.body)
        if "raw=true" not in target:
            fits(path_of(target), answer)
    raw, _ = answers[MORE[1]]
    assert (raw.body, raw.content_type) == (b"3", "application/json")
    resolved(DOCUMENT["components"]["schemas"]["Position"]).validate(json.loads(raw.headers["Holdfast-Position"]))


def resolved(schema: dict[str, Any]) -> Any:
    """A validator of a schema, which refuses fields that the document does not have."""
    import jsonschema  # loading it takes seconds, so the tests that need it are slow

    whole = deepcopy({**schema, "components": DOCUMENT["components"]})
    for each in walked(whole):
        if each.get("type") == "object" and "properties" in each:
            each.setdefault("additionalProperties", False)
    return jsonschema.Draft202012Validator(whole)


def walked(document: Any) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict):
        yield document
    for each in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from walked(each)


def fits(path: str, answer: Answer) -> None:
    """Fail if the document does not have this status for a path, its headers, or the form of its body."""
    told = DOCUMENT["paths"][path]["get"]["responses"][str(answer.code)]
    if "$ref" in told:
        told = DOCUMENT["components"]["responses"][told["$ref"].rpartition("/")[2]]
    required = {name for name, header in told.get("headers", {}).items() if header.get("required")}
    assert required <= set(answer.headers) <= set(told.get("headers", {}))
    body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
    resolved(told["content"][answer.content_type]["schema"]).validate(json.loads(body))


def test_each_reference_of_the_document_leads_to_a_part_of_it() -> None:
    named = {each["$ref"] for each in walked(DOCUMENT) if "$ref" in each}
    has = {f"#/components/{kind}/{name}" for kind, parts in DOCUMENT["components"].items() for name in parts}
    assert named == has - {"#/components/securitySchemes/state"}


@pytest.mark.slow
def test_the_document_is_json_and_its_schemas_are_json_schema() -> None:
    import jsonschema  # loading it takes seconds, so the tests that need it are slow

    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
    for schema in [*DOCUMENT["components"]["schemas"].values(), *(each["schema"] for each in PARAMETERS.values())]:
        jsonschema.Draft202012Validator.check_schema(schema)


def test_a_path_of_no_route_has_no_parameters() -> None:
    assert parameters_of(["stores", "totals", "nosuch", "key"]) is None
    assert parameters_of(["stores"]) == frozenset()
    assert parameters_of([]) is None
