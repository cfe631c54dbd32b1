"""Finds and aborts hanging transactions on changelogs, with kafka-python, because librdkafka lacks the requests."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.infra.kafka.inspection.hanging_transactions import OpenTransaction, state_of
from holdfast.infra.kafka.inspection.inspection import Inspector
from holdfast.infra.kafka.records import Partition
from holdfast.processors.lifecycle.plans.facts.facts import HangingTransaction
from holdfast.processors.lifecycle.plans.stages import AbortTransaction


class HangingTransactions:
    """Finds and aborts hanging transactions in one Kafka cluster.

    Args:
        bootstrap: Kafka's bootstrap servers.
        client_config: The installation's librdkafka settings.

    Both methods raise three errors. ClientSettingsInvalid: a librdkafka setting has no equivalent in the second
    library, and no request was sent. BrokerUnreachable: no broker answered. AccessRefused: an access right is missing;
    the error names the ACL to add.
    """

    def __init__(self, bootstrap: str, client_config: Mapping[str, str | int | float | bool]) -> None:
        self._bootstrap = bootstrap
        self._config = dict(client_config)

    def hanging(self, partitions: Mapping[str, int]) -> tuple[HangingTransaction, ...]:
        """The hanging transactions on these topics; ``partitions`` maps topic names to the number of partitions."""
        if not partitions:
            return ()
        with Inspector(self._bootstrap, self._config) as inspector:
            return tuple(
                HangingTransaction(
                    topic,
                    each.partition.number,
                    each.producer_id,
                    each.producer_epoch,
                    each.start_offset,
                    round(each.since_write_s, 1),
                )
                for topic, count in partitions.items()
                for each in inspector.open_transactions(topic, range(count))
                if state_of(each) == "hanging"
            )

    def abort_hanging(self, stage: AbortTransaction) -> bool:
        """Abort the transaction; returns False if it is no longer open."""
        place = Partition(stage.topic, stage.partition)
        transaction = OpenTransaction(place, stage.producer_id, stage.producer_epoch, stage.start_offset, 0.0)
        with Inspector(self._bootstrap, self._config) as inspector:
            return inspector.abort(transaction)
