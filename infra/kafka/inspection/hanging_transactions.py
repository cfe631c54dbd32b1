"""Decides whether an open transaction is hanging, from the values that the brokers reported. Pure functions.

A hanging transaction is open on a partition, but unknown to every coordinator. It counts as hanging only after the
brokers' ``transaction.max.timeout.ms`` plus ``SLACK_S``, because a coordinator ends each transaction that it knows
before that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.infra.kafka.records import Partition

#: Kafka's default of ``transaction.max.timeout.ms``, seconds; used if the brokers do not report the setting.
MAX_TIMEOUT_S = 900.0
#: Seconds that are added to the maximum timeout before a transaction counts as hanging. They are needed because brokers
#: check only every 10 s, and because the clocks of brokers and clients differ.
SLACK_S = 60.0

TransactionState = Literal["open", "unexplained", "hanging"]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that wrote to a partition, and that is neither committed nor aborted there."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    #: Offset of the transaction's first record in the partition. The next field: seconds since the transaction's last
    #: record.
    start_offset: int
    since_write_s: float
    #: Facts from the coordinator: transactional id, state, seconds since the start, and timeout in seconds. All are
    #: None if no coordinator knows the transaction.
    transactional_id: str | None = None
    state: str | None = None
    age_s: float | None = None
    timeout_s: float | None = None
    #: The brokers' setting ``transaction.max.timeout.ms``, in seconds.
    max_timeout_s: float = MAX_TIMEOUT_S

    @property
    def open_for_s(self) -> float:
        """Minimum seconds for which the transaction has certainly been open."""
        return max(0.0, self.since_write_s if self.age_s is None else self.age_s)

    @property
    def sentence(self) -> str:
        """Age, producer and first offset of the transaction, as the end of a sentence."""
        name = "" if self.transactional_id is None else f" of {self.transactional_id}"
        return (
            f"open for {self.open_for_s:.0f} s by producer {self.producer_id} (epoch {self.producer_epoch}){name} "
            f"since offset {self.start_offset}"
        )


def state_of(transaction: OpenTransaction) -> TransactionState:
    """Classifies a transaction.

    ``open``: a coordinator knows the transaction. ``hanging``: no coordinator knows it, and it has been open for longer
    than the maximum timeout plus ``SLACK_S``. ``unexplained``: no coordinator knows it, but it has been open for a
    shorter time. It may have begun or ended during the inspection, or this client has no right to see its transactional
    id.
    """
    if transaction.transactional_id is not None:
        return "open"
    return "hanging" if transaction.since_write_s > transaction.max_timeout_s + SLACK_S else "unexplained"
