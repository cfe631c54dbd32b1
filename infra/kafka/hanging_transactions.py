"""Decides from the brokers' answers whether an open transaction is hanging; no I/O.

The threshold is ``transaction.max.timeout.ms`` of the brokers plus ``SLACK_S``: a coordinator ends its own transactions
earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.infra.kafka.records import Partition

#: Kafka's default of ``transaction.max.timeout.ms``, seconds; for brokers that do not report the setting.
MAX_TIMEOUT_S = 900.0
#: Added to the maximum timeout before a transaction counts as hanging, seconds: brokers check every 10 s, and the
#: clocks of brokers and clients differ.
SLACK_S = 60.0

TransactionState = Literal["open", "unexplained", "hanging"]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that wrote to a partition and is neither committed nor aborted."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    #: Offset of the transaction's first record in the partition, and seconds since its last record.
    start_offset: int
    since_write_s: float
    #: Facts from the coordinator: the producer's name, the state, seconds since the start, and seconds after which the
    #: coordinator aborts the transaction. All None when no coordinator knows the transaction.
    transactional_id: str | None = None
    state: str | None = None
    age_s: float | None = None
    timeout_s: float | None = None
    #: ``transaction.max.timeout.ms`` of the brokers, seconds.
    max_timeout_s: float = MAX_TIMEOUT_S

    @property
    def open_for_s(self) -> float:
        """Seconds for which the transaction has been open, at least."""
        return max(0.0, self.since_write_s if self.age_s is None else self.age_s)

    @property
    def sentence(self) -> str:
        """Age, producer and first offset as part of a sentence."""
        name = "" if self.transactional_id is None else f" of {self.transactional_id}"
        return (
            f"open for {self.open_for_s:.0f} s by producer {self.producer_id} (epoch {self.producer_epoch}){name} "
            f"since offset {self.start_offset}"
        )


def state_of(transaction: OpenTransaction) -> TransactionState:
    """``open`` (known to a coordinator), ``hanging`` (unknown to all coordinators, and too old) or ``unexplained``.

    An unexplained transaction is unknown to the coordinators, but young: it began or ended during the inspection, or
    this client may not see its transactional id.
    """
    if transaction.transactional_id is not None:
        return "open"
    return "hanging" if transaction.since_write_s > transaction.max_timeout_s + SLACK_S else "unexplained"
