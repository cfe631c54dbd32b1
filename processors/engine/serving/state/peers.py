"""Finds the worker that owns a task, and asks it.

    group's description: partition ──► member ──► client id  ──► a worker of this machine: its endpoint file
                                                 └─ `…-@host:port`: a worker that other machines reach

The description is requested at most once a second, by a thread of the HTTP server, and only if a query needs it. A
worker that does not own the task either answers 421. The description is then requested again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from holdfast.infra.clock import Clock
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import ADDRESS, Partition, worker_of
from holdfast.infra.tls import trusted_for
from holdfast.processors.engine.queries.errors import StateAway
from holdfast.processors.engine.runtime.ports import Cluster
from holdfast.processors.engine.serving.endpoint_file import read_endpoint
from holdfast.processors.engine.serving.requests import FORWARDED, SERVER, Answer
from holdfast.processors.engine.topology import Topology

if TYPE_CHECKING:
    import ssl

    import httpx

#: Seconds for which the description of the group is reused, and the timeout of a request for it.
GROUP_FRESH_S, REQUEST_TIMEOUT_S = 1.0, 2.5
#: Seconds that a forwarded query may take, in addition to the time that it may wait.
FORWARD_TIMEOUT_S = 5.0
#: HTTP status of a worker that does not own the task of a forwarded query.
MISDIRECTED = 421
#: HTTP status of a worker that has another token of state.
UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True)
class Peer:
    """Another worker: its URL, and the token that reads its state."""

    url: str
    token: str


class Access(NamedTuple):
    """How a worker asks those of other machines: all have one token of state, and all have TLS, or none has.

    ``tls`` has the authorities by which the worker trusts their certificates; None means no TLS.
    """

    token: str
    tls: ssl.SSLContext | None = None


class Peers:
    """The other workers of a processor's consumer group.

    Args:
        group: The consumer group.
        own: This worker's transactional id.
        endpoints: The folder with the endpoint files of this machine.
        access: How workers of other machines are asked.
    """

    def __init__(  # tidy: allow-wide because each argument is one fact about this worker or its group
        self, topology: Topology, cluster: Cluster, clock: Clock, group: str, own: str, endpoints: Path, access: Access
    ) -> None:
        self._topology, self._cluster, self._clock = topology, cluster, clock
        self._group, self._own, self._endpoints, self._access = group, own, endpoints, access
        self._lock = Lock()
        self._owners: Mapping[Partition, str] = {}
        self._looked_at = float("-inf")
        self._client: httpx.Client | None = None

    def owner_of(self, subtopology: str, partition: int, *, newer_than: float = float("-inf")) -> Peer:
        """Returns the worker that owns a task.

        Args:
            newer_than: Monotonic seconds. An older description of the group is requested again.

        Raises:
            StateAway: No other worker owns the task now, or its address is not known.
        """
        inputs = self._topology.subtopology(subtopology).inputs
        with self._lock:
            now = self._clock.monotonic()
            if now - self._looked_at >= GROUP_FRESH_S or self._looked_at < newer_than:
                self._owners, self._looked_at = self._look(), now
            client_id = next(
                (each for topic in inputs if (each := self._owners.get(Partition(topic, partition)))), None
            )
        task = f"{subtopology}-{partition}"
        if client_id is None or worker_of(client_id) == self._own:
            raise StateAway(f"No worker owns task {task} now.", task=task)
        found = self._peer(client_id)
        if found is None:
            raise StateAway(
                f"The address of the worker that owns task {task} is not known: its client id is {client_id}. Workers "
                "on several machines need HOLDFAST_SERVING__HOST.",
                retry_after_s=5.0,
                task=task,
            )
        return found

    def ask(self, peer: Peer, target: str, wait_s: float) -> Answer:
        """Sends a query to another worker, and returns its answer unchanged.

        Raises:
            StateAway: The worker does not answer.
        """
        import httpx  # loaded here, because most workers never forward a query

        if self._client is None:
            limits = httpx.Limits(max_connections=32, keepalive_expiry=30.0)
            verify = self._access.tls or trusted_for("http:")
            self._client = httpx.Client(trust_env=False, limits=limits, follow_redirects=False, verify=verify)
        headers = {"Authorization": f"Bearer {peer.token}", FORWARDED: self._own}
        try:
            answer = self._client.get(peer.url + target, headers=headers, timeout=FORWARD_TIMEOUT_S + wait_s)
        except httpx.HTTPError as failure:
            raise StateAway(
                f"The worker that owns the task did not answer: {type(failure).__name__}: {failure}.", retry_after_s=1.0
            ) from failure
        if answer.headers.get("Server") != SERVER:  # another program has taken the address of a worker that has ended
            raise StateAway(f"At the address of the worker that owns the task is no worker of Holdfast: {peer.url}.")
        if answer.status_code == UNAUTHORIZED:  # the client's own token is right, so the client must not see a 401
            raise StateAway(
                f"The worker at {peer.url} owns the task, and refuses this worker's token of state. All workers of a "
                "processor need the same `HOLDFAST_SERVING__STATE_TOKEN` (or `HOLDFAST_SERVING__TOKEN`).",
                retry_after_s=5.0,
            )
        passed = {name: answer.headers[name] for name in PASSED_HEADERS if name in answer.headers}
        return Answer(answer.status_code, answer.content, answer.headers.get("Content-Type", ""), passed)

    def close(self) -> None:
        """Closes the connections to other workers."""
        if self._client is not None:
            self._client.close()

    def _look(self) -> dict[Partition, str]:
        view = self._cluster.topics(REQUEST_TIMEOUT_S)
        try:
            shares = view.group_shares(self._group)
            members = {each.member_id: each.client_id for each in view.group_members(self._group)}
        except HoldfastError as failure:
            raise StateAway(f"The owners of the tasks can't be read: {failure.message}") from failure
        if shares is None:
            raise StateAway("The group moves its tasks now.")
        return {
            place: members[member] for member, places in shares.members.items() if member in members for place in places
        }

    def _peer(self, client_id: str) -> Peer | None:
        """Returns the address of a worker: from its client id, or from the endpoint files of this machine."""
        _, _, advertised = client_id.partition(ADDRESS)
        if advertised:
            scheme = "http" if self._access.tls is None else "https"
            return Peer(f"{scheme}://{advertised}", self._access.token)
        for file in self._endpoints.glob("*.json"):
            endpoint = read_endpoint(file)
            if endpoint is not None and endpoint.worker == client_id and endpoint.is_owner:
                return Peer(endpoint.url, endpoint.state_token)
        return None


#: The headers of another worker's answer that are passed on to the client.
PASSED_HEADERS = ("Retry-After", "Holdfast-Position", "Location")
