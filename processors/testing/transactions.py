"""The transaction coordinator of the in-memory cluster.

It follows Kafka's first transaction protocol, as librdkafka does.

    EMPTY ──first partition or offsets──► OPEN ──end──► ENDING ──last marker written──► EMPTY

The coordinator answers a request to end a transaction immediately. Then it writes the markers, one partition after the
other. After the transaction timeout, it aborts an open transaction and fences its producer.

As in Kafka, only the producer's epoch in a late request to end a transaction is checked. If the epoch is current, the
request ends the transaction that is open when the request arrives, even if it was meant for an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from holdfast.infra.kafka.errors import KafkaFailed, ProducerFenced
from holdfast.infra.kafka.records import Partition, ProducerState
from holdfast.processors.testing.clock import Timer, VirtualClock
from holdfast.processors.testing.network import Network

#: The transaction.timeout.ms of the engine's producers, in seconds.
TRANSACTION_TIMEOUT_S = 15.0


class Phase(Enum):
    """The phase of a transactional id: no transaction, an open transaction, or a transaction that is being ended."""

    EMPTY = "empty"
    OPEN = "open"
    ENDING = "ending"


@dataclass(slots=True)
class Transaction:
    """The state of one transactional id. ``committed`` tells whether its last transaction was committed."""

    transactional_id: str
    producer_id: int
    epoch: int = -1
    phase: Phase = Phase.EMPTY
    partitions: list[Partition] = field(default_factory=list)
    offsets: dict[str, dict[Partition, int]] = field(default_factory=dict)
    timer: Timer | None = None
    committed: bool | None = None


class TransactionCoordinator:
    """The coordinator of all transactional ids of a cluster.

    Args:
        clock: The virtual clock.
        network: The network, which sets the delay of markers.
        write_marker: A function that writes a marker; its arguments are (partition, producer id, commit).
        settle_offsets: A function that ends a group's pending offsets; its arguments are (group, offsets, producer id,
            commit).
    """

    def __init__(
        self,
        clock: VirtualClock,
        network: Network,
        write_marker: Callable[[Partition, int, bool], None],
        settle_offsets: Callable[[str, Mapping[Partition, int], int, bool], None],
    ) -> None:
        self._clock = clock
        self._network = network
        self._write_marker = write_marker
        self._settle_offsets = settle_offsets
        self._by_id: dict[str, Transaction] = {}

    def register(self, transactional_id: str) -> tuple[int, int] | None:
        """Registers a producer.

        Returns its producer id and epoch; None while the previous transaction is still ending.
        """
        known = self._by_id.get(transactional_id)
        if known is None:
            known = self._by_id[transactional_id] = Transaction(transactional_id, 1000 + len(self._by_id))
        if known.phase is Phase.OPEN:
            known.epoch += 1
            self._end(known, commit=False)
        if known.phase is Phase.ENDING:
            return None
        known.epoch += 1
        known.committed = None
        return known.producer_id, known.epoch

    def producer_state(self, transactional_id: str) -> ProducerState | None:
        """Returns the coordinator's state of a transactional id; None if the id is unknown."""
        known = self._by_id.get(transactional_id)
        if known is None:
            return None
        ended: Literal["committed", "aborted", "none"]
        ended = "none" if known.committed is None else "committed" if known.committed else "aborted"
        state = {Phase.OPEN: "open", Phase.ENDING: "ending", Phase.EMPTY: ended}[known.phase]
        return ProducerState(known.producer_id, known.epoch, state)  # type: ignore[arg-type]

    def ended(self) -> list[Transaction]:
        """Returns the transactional ids that have no open or ending transaction."""
        return [known for known in self._by_id.values() if known.phase is Phase.EMPTY]

    def add_partition(self, transactional_id: str, epoch: int, partition: Partition) -> bool:
        """Adds a partition to the transaction. Returns False while the producer's previous transaction is still ending.

        Raises:
            ProducerFenced: A newer producer has the same transactional id.
        """
        known = self._checked(transactional_id, epoch)
        if known.phase is Phase.ENDING:
            return False
        self._opened(known)
        if partition not in known.partitions:
            known.partitions.append(partition)
        return True

    def add_offsets(self, transactional_id: str, epoch: int, group: str, offsets: Mapping[Partition, int]) -> bool:
        """Adds a group's offsets to the transaction.

        Returns False while the producer's previous transaction is still ending.
        """
        known = self._checked(transactional_id, epoch)
        if known.phase is Phase.ENDING:
            return False
        self._opened(known)
        known.offsets.setdefault(group, {}).update(offsets)
        return True

    def is_open(self, transactional_id: str, epoch: int) -> bool:
        """Whether the producer with this epoch has an open transaction."""
        known = self._checked(transactional_id, epoch)
        return known.phase is Phase.OPEN

    def end(self, transactional_id: str, epoch: int, *, commit: bool) -> None:
        """Commits or aborts the transaction. Repeating the same request has no further effect.

        Raises:
            ProducerFenced: A newer producer has the same transactional id.
            KafkaFailed: A late request has already ended the transaction with the opposite result (commit or abort).
        """
        known = self._checked(transactional_id, epoch)
        if known.phase is Phase.OPEN:
            self._end(known, commit=commit)
        elif known.committed is not commit:
            raise KafkaFailed(
                f"Told to {'commit' if commit else 'abort'}, Kafka refused: INVALID_TXN_STATE.",
                action="Restart the processor.",
                error="INVALID_TXN_STATE",
            )

    def _checked(self, transactional_id: str, epoch: int) -> Transaction:
        known = self._by_id[transactional_id]
        if known.epoch != epoch:
            raise ProducerFenced(
                f"The transactional id {transactional_id} has a newer producer: epoch {known.epoch}, not {epoch}.",
                action="Nothing is lost. Make sure that no two processes run with the same slot.",
                error="INVALID_PRODUCER_EPOCH",
            )
        return known

    def _opened(self, known: Transaction) -> None:
        if known.phase is Phase.EMPTY:
            known.phase = Phase.OPEN
            known.timer = self._clock.call_later(TRANSACTION_TIMEOUT_S, lambda: self._time_out(known))

    def _time_out(self, known: Transaction) -> None:
        if known.phase is Phase.OPEN:
            known.epoch += 1
            self._end(known, commit=False)

    def _end(self, known: Transaction, *, commit: bool) -> None:
        known.phase = Phase.ENDING
        known.committed = commit
        if known.timer is not None:
            known.timer.cancel()
        steps: list[Callable[[], None]] = [
            lambda partition=partition: self._write_marker(partition, known.producer_id, commit)  # type: ignore[misc]
            for partition in known.partitions
            if not self._network.leaves_out(partition.topic)
        ]
        steps += [
            lambda group=group, offsets=offsets: self._settle_offsets(  # type: ignore[misc]
                group, offsets, known.producer_id, commit
            )
            for group, offsets in known.offsets.items()
            if not self._network.leaves_out(group)
        ]
        steps.append(lambda: self._ended(known))
        known.partitions, known.offsets = [], {}
        for number, step in enumerate(steps, 1):
            self._clock.call_later(self._network.marker_delay_s * number / len(steps), step)

    def _ended(self, known: Transaction) -> None:
        known.phase = Phase.EMPTY
