"""Ends what Kafka left open of a transaction that has ended: its markers are missing on some partitions.

Kafka 4.1 to 4.4 can leave markers out when brokers crash (KAFKA-20734; `docs/changelogs.md`). The next commit of the
same producer would publish records that were aborted. So a worker looks before it sends anything: when it makes a
producer, after an abort, and after the loss of a broker.

    nothing held back ──► done
    held back ──► what does the coordinator say of the last transaction?
                      open ──► done: the producer's init aborts it
                      ending ──► look again
                      committed ──► commit what is open of this producer
                      aborted, none ──► abort what is open of this producer

Invariants:
    - No producer is initialised before this look: with its init the coordinator forgets how the last transaction ended.
    - A marker is written only when the coordinator said the same before and after the look: nothing is open there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import structlog

from holdfast.infra.kafka.errors import AccessRefused, BrokerUnreachable, CoordinatorMoving, KafkaFailed
from holdfast.infra.kafka.partitioners import offsets_partition
from holdfast.infra.kafka.producer import TRANSACTION_S
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import Cluster, TopicView

_log = structlog.get_logger("runtime.unfinished")

#: Kafka's topic of the groups' offsets.
OFFSETS_TOPIC = "__consumer_offsets"
#: Timeout of one request, seconds.
LOOK_TIMEOUT_S = 5.0
#: Pause between two looks, seconds.
LOOK_EVERY_S = 0.05
#: Transactions of others, open when this worker looked, have ended after this many seconds.
OTHERS_END_S = 2 * TRANSACTION_S


class Held(NamedTuple):
    """The last stable offset and the end of a partition with an open transaction."""

    stable: int
    end: int


def held_back(view: TopicView, topics: Iterable[str], group: str = "") -> dict[Partition, Held]:
    """The partitions with an open transaction: the last stable offset is below the end.

    With ``group``, also the partition with the group's offsets; it is left out when this client may not describe it.
    Topics that do not exist have no open transaction.
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
    """Looks for what is left open of a transactional id on the topics that its producer writes to.

    Args:
        cluster: The cluster.
        topics: Those topics.
        group: The group whose offsets its transactions commit.
        timeout_s: How long brokers that do not answer are waited for, seconds.
    """

    def __init__(self, cluster: Cluster, topics: Iterable[str], group: str, timeout_s: float) -> None:
        self._cluster = cluster
        self._topics = tuple(topics)
        self._group = group
        self._timeout_s = timeout_s

    def settle(self, transactional_id: str, on_wait: Callable[[], None] = lambda: None) -> None:
        """End what is left open. ``on_wait`` is called between two looks.

        Raises:
            BrokerUnreachable: No broker answered in time.
            AccessRefused: A transaction stays open, and this client may not see whose it is, or may not end it.
            KafkaFailed: Kafka refused another request.
        """
        now = self._cluster.clock.monotonic
        deadline = now() + self._timeout_s
        refusal: AccessRefused | None = None
        seen: Mapping[Partition, Held] = {}
        while True:
            try:
                held = held_back(self._cluster.topics(LOOK_TIMEOUT_S), self._topics, self._group)
                if refusal is None:
                    if not held or self._ended(transactional_id, held):
                        return
                elif not any(place in held and held[place].stable < end for place, (_, end) in seen.items()):
                    return
                elif now() > deadline:
                    raise refusal
            except AccessRefused as refused:
                if refusal is not None:
                    raise
                # Others' transactions end soon. What stays open may be this producer's.
                refusal, seen, deadline = refused, held, now() + OTHERS_END_S
            except (BrokerUnreachable, CoordinatorMoving):
                if now() > deadline:
                    raise
            on_wait()
            self._cluster.rest(LOOK_EVERY_S)

    def _ended(self, transactional_id: str, held: Iterable[Partition]) -> bool:
        """Whether nothing that has ended is left open; False to look again."""
        with self._cluster.transactions(LOOK_TIMEOUT_S) as transactions:
            known = transactions.standing(transactional_id)
            if known is None or known.state == "open":
                return True
            if known.state == "ending":
                return False
            left = transactions.open_of(known.producer_id, held)
            if left and transactions.standing(transactional_id) != known:
                return False
            for place in sorted(left):
                transactions.end(place, known.producer_id, commit=known.state == "committed")
                _log.warning(
                    "Kafka left a transaction open that had ended (KAFKA-20734); its marker is written now",
                    transactional_id=transactional_id,
                    partition=f"{place.topic}[{place.number}]",
                    marker="commit" if known.state == "committed" else "abort",
                )
            return True
