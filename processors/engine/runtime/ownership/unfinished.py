"""Writes the missing transaction markers of transactions that have ended.

Kafka 4.1 to 4.4 can leave out markers when brokers crash (KAFKA-20734; `docs/changelogs.md`). The next commit of the
same producer would then publish aborted records. A worker therefore checks for missing markers before it sends
anything. It checks when it creates a producer, after an abort, and after the loss of a broker.

    no partition has an open transaction ──► done
    a partition has an open transaction ──► ask the coordinator for the state of this producer's last transaction:
                              open ──► done, because the producer's ``init`` aborts it
                              ending ──► check again
                              committed ──► write the missing commit markers of this producer
                              aborted, none ──► write the missing abort markers of this producer

Invariants:
    - No producer is initialised before this check, because ``init`` makes the coordinator forget how the last
      transaction ended.
    - A marker is written only if the coordinator reports the same ended transaction before and after the check of the
      partitions. In this case, no new transaction can be open.

The worker that wrote the transaction may have been deleted. If a task can't be opened, or its restore makes no
progress, the new owner searches for transactions of all workers of the processor whose markers are missing. These
workers may be alive, so the order of requests is reversed. The same transaction must be open on the partition before
and after the coordinator reports that it has ended. A live worker's open transaction never meets this condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import structlog

from holdfast.infra.kafka.clients.producer import TRANSACTION_S
from holdfast.infra.kafka.errors import (
    AccessRefused,
    BrokerUnreachable,
    ClientSettingsInvalid,
    CoordinatorMoving,
    KafkaFailed,
)
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.partitioners import offsets_partition
from holdfast.processors.engine.changelog.names import is_worker_of
from holdfast.processors.engine.runtime.ports import Cluster, TopicView

_log = structlog.get_logger("runtime.unfinished")

#: Kafka's internal topic with the committed offsets of all groups.
OFFSETS_TOPIC = "__consumer_offsets"
#: Timeout of one request, in seconds.
LOOK_TIMEOUT_S = 5.0
#: Seconds between the first two checks, and maximum seconds between two checks. The pause doubles after each check.
LOOK_EVERY_S, LOOK_EVERY_MAX_S = 0.05, 1.0
#: Maximum seconds for which a normal transaction of another producer stays open. If it stays open longer, its markers
#: are missing.
OTHERS_END_S = 2 * TRANSACTION_S


class Held(NamedTuple):
    """A partition on which a transaction is open: its last stable offset and its high watermark."""

    stable: int
    end: int


def open_transactions(view: TopicView, topics: Iterable[str], group: str = "") -> dict[Partition, Held]:
    """Returns the partitions with an open transaction, whose last stable offset is below their high watermark.

    With ``group``, the result may include the partition of ``__consumer_offsets`` with the group's offsets, if this
    client may describe it. Missing topics are ignored.
    """
    found = {}
    for topic in sorted(topics):
        try:
            found.update(_behind(view, topic))
        except (AccessRefused, BrokerUnreachable, CoordinatorMoving):
            raise
        except KafkaFailed:
            if topic in view.describe([topic]):
                raise
    if group:
        try:
            number = offsets_partition(group, len(view.end_offsets(OFFSETS_TOPIC, committed=True)))
            found.update({place: held for place, held in _behind(view, OFFSETS_TOPIC).items() if place[1] == number})
        except (BrokerUnreachable, CoordinatorMoving):
            raise
        except KafkaFailed as refused:
            _log.debug("the topic of the groups' offsets can't be looked at", error=refused.message)
    return found


def _behind(view: TopicView, topic: str) -> dict[Partition, Held]:
    stable = view.end_offsets(topic, committed=True)
    ends = view.end_offsets(topic, committed=False).items()
    return {Partition(topic, each): Held(stable[each], end) for each, end in ends if stable.get(each, end) < end}


class Unfinished:
    """Finds transactions that have ended but whose markers are missing, and writes the markers.

    Args:
        cluster: The Kafka cluster.
        topics: The topics that the transactions write to.
        group: The consumer group whose offsets the transactions commit.
        timeout_s: Maximum seconds to wait for brokers that do not answer.
    """

    def __init__(self, cluster: Cluster, topics: Iterable[str], group: str, timeout_s: float) -> None:
        self._cluster = cluster
        self._topics = tuple(topics)
        self._group = group
        self._timeout_s = timeout_s

    def settle(
        self, transactional_id: str, on_wait: Callable[[], None] = lambda: None, *, timeout_s: float | None = None
    ) -> None:
        """Write the missing markers of the last transaction of ``transactional_id``; return when none is missing.

        ``on_wait`` is called between two checks. ``timeout_s`` replaces the timeout of this object.

        Raises:
            BrokerUnreachable: No broker answered in time, or the coordinator did not finish the last transaction.
            AccessRefused: A transaction stays open, and this client may not see its owner, or may not end it.
            KafkaFailed: Kafka refused another request, or a transaction stays open that this client can't query.
        """
        now = self._cluster.clock.monotonic
        within_s = self._timeout_s if timeout_s is None else timeout_s
        deadline, pause_s = now() + within_s, LOOK_EVERY_S
        refusal: KafkaFailed | None = None
        seen: Mapping[Partition, Held] = {}
        while True:
            try:
                held = open_transactions(self._cluster.topics(LOOK_TIMEOUT_S), self._topics, self._group)
                if refusal is None:
                    refusal = self._ended(transactional_id, held) if held else None
                    if refusal is None:
                        return
                    if isinstance(refusal, AccessRefused | ClientSettingsInvalid):
                        # Open transactions of other producers end soon. A transaction that stays open may be this
                        # producer's.
                        seen, deadline = held, now() + min(OTHERS_END_S, within_s)
                elif not any(place in held and held[place].stable < end for place, (_, end) in seen.items()):
                    return
                if now() > deadline:
                    raise _not_told(next(iter(held)), refusal)
                if not seen:
                    refusal = None  # the coordinator was still ending the transaction, so it is asked again
            except (BrokerUnreachable, CoordinatorMoving):
                if now() > deadline:
                    raise
            on_wait()
            self._cluster.rest(pause_s)
            pause_s = min(2 * pause_s, LOOK_EVERY_MAX_S)

    def settle_for_others(self) -> None:
        """Write the missing markers of hanging transactions of all other workers of this processor.

        These workers may have been deleted.

        A hanging transaction is open in a partition, but its coordinator no longer knows it. A transaction that its
        coordinator still reports as open is left unchanged.

        Raises:
            BrokerUnreachable: No broker answered in time.
            AccessRefused: This client has no right to see the owner of an open transaction, or to write its marker.
            KafkaFailed: Kafka refused another request.
        """
        held = open_transactions(self._cluster.topics(LOOK_TIMEOUT_S), self._topics, self._group)
        if not held:
            return
        with self._cluster.transactions(LOOK_TIMEOUT_S) as transactions:
            for left in transactions.left_open(held):
                if is_worker_of(self._group, left.transactional_id) and transactions.end_left(left):
                    _tell(left.transactional_id, left.partition, commit=left.committed)

    def _ended(self, transactional_id: str, held: Iterable[Partition]) -> KafkaFailed | None:
        """Write the missing markers of ``transactional_id`` on ``held``, the partitions with an open transaction.

        Returns None if no marker is missing now; otherwise the error that prevented the check.
        """
        try:
            with self._cluster.transactions(LOOK_TIMEOUT_S) as transactions:
                known = transactions.producer_state(transactional_id)
                if known is None or known.state == "open":
                    return None
                left = transactions.open_of(known.producer_id, held) if known.state != "ending" else ()
                if known.state == "ending" or (left and transactions.producer_state(transactional_id) != known):
                    return BrokerUnreachable(
                        f"The coordinator does not finish the last transaction of {transactional_id}.",
                        action="Check that all brokers run: each partition that it wrote to needs a leader and its "
                        "in-sync replicas. Nothing is lost.",
                    )
                for place in sorted(left):
                    transactions.end(place, known.producer_id, commit=known.state == "committed")
                    _tell(transactional_id, place, commit=known.state == "committed")
                return None
        except (AccessRefused, ClientSettingsInvalid) as refused:
            return refused


def _tell(transactional_id: str, place: Partition, *, commit: bool) -> None:
    _log.warning(
        "Kafka left a transaction open that had ended (KAFKA-20734); its marker is written now",
        transactional_id=transactional_id,
        partition=f"{place.topic}[{place.number}]",
        marker="commit" if commit else "abort",
    )


def _not_told(place: Partition, why: KafkaFailed) -> KafkaFailed:
    if not isinstance(why, ClientSettingsInvalid):
        return why
    where = f"--topic {place.topic} --partition {place.number}"
    return KafkaFailed(
        f"A transaction stays open on {place.topic}[{place.number}]. Whose it is can't be asked: {why.message}",
        action=f"See who holds it: `kafka-transactions.sh describe-producers {where}`. When it has ended, start the "
        "worker again; nothing is lost.",
        topic=place.topic,
        partition=place.number,
    )
