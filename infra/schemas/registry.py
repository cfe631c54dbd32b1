"""A client of a schema registry: confluent-kafka's client, but calls wait while the registry does not answer.

    answer                                     what the call does
    2xx                                        returns
    404 with a code of a subject or schema     raises the library's error, which says what is missing
    other 4xx                                  raises SchemaRegistryRefuses, without another attempt
    5xx, 408, 429, no connection, no token     tries again, up to ``Patience.limit_s``; then SchemaRegistryAway

Invariants:
    - A registry that does not answer is never reported as a missing schema.
    - Errors and logs contain no credentials.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any

from holdfast.infra.log import get_logger
from holdfast.infra.masking import shown_url
from holdfast.infra.schemas.config import SchemaRegistryClientConfig, SchemaRegistryInvalid
from holdfast.infra.schemas.errors import SchemaRegistryAway, SchemaRegistryRefuses

if TYPE_CHECKING:
    from holdfast.infra.settings.schema_registry import SchemaRegistrySettings

_log = get_logger("schemas.registry")

#: Pauses between attempts, seconds: the first pause and the longest pause; each pause is twice the previous one.
PAUSES_S = 0.2, 1.0
#: HTTP statuses after which a request is repeated, in addition to all statuses from 500 on.
_LATER = (408, 429)
#: The schema registry's error codes for subjects, versions and schemas that do not exist.
_UNKNOWN = range(40400, 40500)
#: The prefix of the schema registry's settings.
_GROUP = "HOLDFAST_SCHEMA_REGISTRY__"
#: Libraries whose errors mean that no answer arrived.
_TRANSPORT = ("httpx", "httpx2", "httpcore", "httpcore2", "authlib")


@dataclass(slots=True)
class Patience:
    """The limits for a call to a schema registry that does not answer. A worker sets these values at its start."""

    #: Maximum seconds that a call waits for an answer; then it fails.
    limit_s: float = 0.0
    #: Function that is called before each pause. It gets the monotonic time of the first failed attempt.
    on_wait: Callable[[float], None] = lambda since: None
    #: Function that returns whether to end the wait early, because the worker stops.
    ends: Callable[[], bool] = lambda: False


class PatientRegistry:
    """Wraps confluent-kafka's client: each public method waits while the schema registry does not answer."""

    def __init__(self, client: Any, url: str, patience: Patience, signs_in: str = "without credentials") -> None:
        self._client, self._patience = client, patience
        #: Words such as ``without credentials``, with which errors say how requests were authenticated. Never a secret.
        self._signs_in = signs_in
        #: Time of the first failed call since the schema registry's last answer; None while the registry answers. After
        #: a call has waited until the time limit without an answer, the next call makes only one attempt.
        self._since: float | None = None
        self.url = shown_url(url)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name.startswith("_") or not callable(found):
            return found

        def patiently(*arguments: Any, **named: Any) -> Any:
            return self._call(found, arguments, named)

        # The wrapped method is stored as an attribute, so that Python calls `__getattr__` only once for each name.
        setattr(self, name, patiently)
        return patiently

    def _call(self, call: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        pause, longest = PAUSES_S
        while True:
            try:
                answer = call(*arguments, **named)
            except Exception as failure:
                reason = self._reason_to_wait(failure, _subject_of(call, arguments, named))
                if reason is None:
                    raise
            else:
                if self._since is not None:
                    _log.info("the schema registry answers again", url=self.url)
                    self._since = None
                return answer
            now = time.monotonic()
            if self._since is None:
                self._since = now
                _log.warning("the schema registry does not answer; the worker waits", url=self.url, reason=reason)
            since = self._since
            if now - since >= self._patience.limit_s or self._patience.ends():
                raise SchemaRegistryAway(
                    f"The schema registry at {self.url} did not answer for {now - since:.0f} s: {reason}.",
                    action="Check the registry; restart the processor when it answers. Nothing is lost.",
                    url=self.url,
                )
            self._patience.on_wait(since)
            time.sleep(pause)
            pause = min(pause * 2, longest)

    def _reason_to_wait(self, failure: Exception, subject: str | None) -> str | None:
        """The reason why a later attempt may succeed; None if the answer is final."""
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        if isinstance(failure, SchemaRegistryError):
            status, code = failure.http_status_code, failure.error_code
            if status >= 500 or status in _LATER:
                return f"HTTP status {status}, {failure.error_message}"
            if status == 404 and (code in _UNKNOWN or self._is_registry()):
                return None
            raise self._refusal(status, str(failure.error_message), subject) from failure
        if any(isinstance(each, ssl.SSLCertVerificationError) for each in _causes(failure)):
            raise SchemaRegistryRefuses(
                f"The certificate of the schema registry at {self.url} is not trusted: {failure}.",
                action="Set `HOLDFAST_SCHEMA_REGISTRY__CA_LOCATION` to the certificate that signs it, or "
                "`ssl_ca_location` of `SchemaRegistryClientConfig`.",
                url=self.url,
            ) from failure
        is_transport = type(failure).__module__.partition(".")[0] in _TRANSPORT
        if is_transport or isinstance(failure, (OSError, OAuthTokenError)):
            return f"{type(failure).__name__}: {failure}"
        return None

    def _is_registry(self) -> bool:
        """Whether a schema registry answers at the URL: it must return the list of its schema types.

        Needed after a 404 without the registry's error code. The URL may be wrong; but some registries answer in the
        same way if the id of a schema is impossible.
        """
        try:
            self._client.get_schema_types()
        except Exception:
            return False
        return True

    def _refusal(self, status: int, said: str, subject: str | None) -> SchemaRegistryRefuses:
        of, these = ("", "its subjects") if subject is None else (f" for subject {subject}", f"subject {subject}")
        expected = {
            401: f"The request was sent {self._signs_in}; expected credentials that the registry knows.",
            403: f"The request was sent {self._signs_in}; expected a user with a right to {these}.",
            409: f"Expected a schema that is compatible with the registered versions of {these}.",
        }
        actions = {
            401: f"Set `{_GROUP}USER` and `{_GROUP}PASSWORD`, or `{_GROUP}TOKEN`; or, if the address is in the code, "
            "`basic_auth_user_info` or `bearer_auth_token` of `SchemaRegistryClientConfig`.",
            403: f"Give this user the right to read and, with `auto_register_schemas`, to write {these}.",
            404: "Check the URL: it ends where `/subjects` begins, as `https://host:8081` or `.../apis/ccompat/v7`.",
            409: "Change the schema so that it is compatible, for example by a default for each new field, or change "
            f"the compatibility of {these}: `PUT {self.url}/config/{subject or '<subject>'}`. Then restart: processing "
            "resumes at this message.",
        }
        parts = [
            f"The schema registry at {self.url} refused a request{of} with HTTP status {status}: {said.rstrip('.')}."
        ]
        return SchemaRegistryRefuses(
            " ".join([*parts, *([expected[status]] if status in expected else [])]),
            action=actions.get(status, "Correct the schema or the configuration of its registry, then restart."),
            url=self.url,
            status=status,
            **({} if subject is None else {"subject": subject}),
        )


def _subject_of(call: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> str | None:
    """Returns the subject of a call; None for a call without a subject.

    The library names each parameter with a subject ``subject_name``. Other texts, such as a schema's GUID, are not
    subjects.
    """
    subject = {**dict(zip(signature(call).parameters, arguments, strict=False)), **named}.get("subject_name")
    return subject if isinstance(subject, str) else None


def _signs_in(properties: Mapping[str, Any]) -> str:
    if "basic.auth.user.info" in properties:
        return "with a user and a password"
    return "with a token" if any(name.startswith("bearer.auth.") for name in properties) else "without credentials"


def _causes(failure: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = failure
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


#: URL -> registry in memory (``mock://…``) of this process.
_in_memory: dict[str, Any] = {}


@dataclass(slots=True)
class Registries:
    """A worker's clients, one for each schema registry, so that all topics of a registry share the cache of schemas."""

    settings: SchemaRegistrySettings
    patience: Patience = field(default_factory=Patience)
    _known: dict[SchemaRegistryClientConfig, PatientRegistry] = field(default_factory=dict)

    def client(self, config: SchemaRegistryClientConfig) -> PatientRegistry:
        """The client for a configuration; repeated calls return the same client.

        Raises:
            SchemaRegistryInvalid: The configuration can't be used.
        """
        if config not in self._known:
            properties = config.properties(self.settings)
            url = str(properties["url"])
            self._known[config] = PatientRegistry(_client(url, properties), url, self.patience, _signs_in(properties))
        return self._known[config]


def _client(url: str, properties: dict[str, Any]) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    if url.startswith("mock://"):
        if url not in _in_memory:
            _in_memory[url] = SchemaRegistryClient.new_client({"url": url})
        return _in_memory[url]
    try:
        return SchemaRegistryClient(properties)
    except (ValueError, TypeError, OSError) as failure:
        raise SchemaRegistryInvalid(
            f"The client of the schema registry at {shown_url(url)} can't be made: {failure}.",
            action="Correct the settings of the group `schema_registry`, or `SchemaRegistryClientConfig`.",
            url=shown_url(url),
        ) from failure
