"""A schema registry refuses a request: the error says what was sent, what was expected, and what to do.

The schema registry is a small HTTP server that answers like Confluent's schema registry.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema

from holdfast import SchemaRegistryClientConfig
from holdfast.infra.schemas.errors import SchemaRegistryRefuses
from holdfast.infra.schemas.registry import Registries
from holdfast.infra.settings.schema_registry import SchemaRegistrySettings

READER, WRITER = (b"Basic " + b64encode(each) for each in (b"reader:sesame-one", b"writer:sesame-two"))
TEXT = Schema('"string"', "AVRO")


class Registry(BaseHTTPRequestHandler):
    """A schema registry that requires a user, lets only ``writer`` register, and checks the compatibility of schemas.

    It refuses a second schema unless the compatibility is NONE.
    """

    compatibility = "BACKWARD"

    def _answer(self, status: int, body: Any) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/config/orders-value":
            type(self).compatibility = body["compatibility"]
        self._answer(200, body)

    def do_GET(self) -> None:
        self._answer(403, {"error_code": 40301, "message": "User is denied operation Read on Subject"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        given = (self.headers["Authorization"] or "").encode()
        if given not in (READER, WRITER):
            self._answer(401, {"error_code": 401, "message": "Unauthorized"})
        elif given == READER:
            self._answer(403, {"error_code": 40301, "message": "User is denied operation Write on Subject"})
        elif self.compatibility != "NONE":
            self._answer(409, {"error_code": 409, "message": "Schema being registered is incompatible"})
        else:
            self._answer(200, {"id": 7})

    def log_message(self, *given: Any) -> None:
        """Prints nothing."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Registry, "compatibility", "BACKWARD")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def register(url: str, **settings: Any) -> int:
    client = Registries(SchemaRegistrySettings(url=url, **settings)).client(SchemaRegistryClientConfig())
    made: int = client.register_schema("orders-value", TEXT)
    return made


def refusal(url: str, **settings: Any) -> SchemaRegistryRefuses:
    with pytest.raises(SchemaRegistryRefuses) as refused:
        register(url, **settings)
    assert "sesame" not in str(refused.value)
    return refused.value


def test_without_credentials_the_error_names_the_settings_of_a_user(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(url)
    assert error.message == (
        f"The schema registry at {url} refused a request for subject orders-value with HTTP status 401: Unauthorized. "
        "The request was sent without credentials; expected credentials that the registry knows."
    )
    assert error.action.startswith("Set `HOLDFAST_SCHEMA_REGISTRY__USER` and `HOLDFAST_SCHEMA_REGISTRY__PASSWORD`, or ")
    monkeypatch.setattr(Registry, "compatibility", "NONE")
    assert register(url, user="writer", password="sesame-two") == 7


def test_wrong_credentials_are_told_as_such(url: str) -> None:
    assert "was sent with a user and a password; expected" in refusal(url, user="writer", password="sesame-3").message
    assert "was sent with a token; expected" in refusal(url, token="sesame-4").message


def test_without_a_right_the_error_names_the_right_and_the_subject(url: str) -> None:
    error = refusal(url, user="reader", password="sesame-one")
    assert "with HTTP status 403: User is denied operation Write on Subject" in error.message
    assert "expected a user with a right to subject orders-value" in error.message
    assert error.action == (
        "Give this user the right to read and, with `auto_register_schemas`, to write subject orders-value."
    )


GUID = "89791762-2336-4186-9674-299b90a802e2"


@pytest.mark.parametrize(
    ("method", "given", "named", "subject"),
    [
        ("get_schema_by_guid", (GUID,), {}, None),
        ("get_schema_by_guid", (), {"guid": GUID}, None),
        ("get_schema", (7,), {}, None),
        ("get_schema", (7, "orders-value"), {}, "orders-value"),
        ("get_latest_version", ("orders-value",), {}, "orders-value"),
        ("get_latest_version", (), {"subject_name": "orders-value"}, "orders-value"),
    ],
)
def test_only_a_subject_is_named_as_one(
    url: str, method: str, given: tuple[Any, ...], named: dict[str, Any], subject: str | None
) -> None:
    settings = SchemaRegistrySettings(url=url, user="reader", password="sesame-one")
    client = Registries(settings).client(SchemaRegistryClientConfig())
    with pytest.raises(SchemaRegistryRefuses) as refused:
        getattr(client, method)(*given, **named)
    error = refused.value
    assert error.fields.get("subject") == subject
    of, these = (" for subject orders-value", "subject orders-value") if subject else ("", "its subjects")
    assert error.message.startswith(f"The schema registry at {url} refused a request{of} with HTTP status 403: ")
    assert error.message.endswith(f"expected a user with a right to {these}.")
    assert error.action.endswith(f"to write {these}.")
    assert GUID not in str(error)


def test_a_schema_that_is_not_compatible_is_taken_after_the_named_request(url: str) -> None:
    from urllib.request import Request, urlopen

    error = refusal(url, user="writer", password="sesame-two")
    assert "Expected a schema that is compatible with the registered versions of subject orders-value." in error.message
    named = error.action.split("`PUT ")[1].split("`")[0]
    body = json.dumps({"compatibility": "NONE"}).encode()
    urlopen(Request(named, body, {"Content-Type": "application/json"}, method="PUT")).close()
    assert register(url, user="writer", password="sesame-two") == 7
