"""A consumer loop of your own: it counts messages by key, exactly once, with state in a local RocksDB and a changelog.

    python own_loop.py --broker localhost:9092 --name visits --state state

reads topic ``visits``, and writes each new count to ``visits-counts``. ``--kill-at STEP`` kills the process (kill -9)
at a step of its second commit.
"""

import argparse
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from rocksdict import Options, Rdict, WriteBatch

#: The steps of a commit, and of the restore after it, at which ``--kill-at`` ends the process.
STEPS = ("processed", "sent", "offsets-sent", "committed", "written", "restoring")
#: Messages of one commit, and the longest time until a commit, seconds.
COMMIT_EVERY, COMMIT_S = 100, 0.5
#: Maximum seconds of a request, and of a restore without progress.
PATIENCE_S = 60.0
#: Records that a restore writes at once. Few, so that the demonstration can kill between two writes.
RESTORED_AT_ONCE = 10
#: librdkafka's log level "notice": below it are lines about clients that are closed.
QUIET = 5
#: Keys in RocksDB. A message key gets the prefix ``KEY``, so it can't be one of the other two. The changelog has the
#: same keys and values, but for ``CHANGELOG``.
KEY, INPUT, CHANGELOG = b"k", b"input", b"changelog"


class LoopFailed(Exception):
    """The state and the offsets do not belong together. The message says what was seen."""


class PartitionState:
    """The state of one input partition: a RocksDB that never has a write that Kafka has not committed."""

    def __init__(self, folder: Path) -> None:
        self._db = Rdict(str(folder), Options(raw_mode=True))
        self._new: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """Returns the newest value of a key, also if it is not committed."""
        return self._new[key] if key in self._new else self._db.get(key)

    def set(self, key: bytes, value: bytes) -> None:
        """Sets a value in memory. ``write`` puts it into RocksDB."""
        self._new[key] = value

    def position(self, name: bytes) -> int:
        """Returns the next offset of the input or of the changelog that RocksDB has; 0 without one."""
        return int(self._db.get(name) or b"0")

    def new(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterates over the writes since the last commit."""
        yield from self._new.items()

    def write(self, changelog_end: int) -> None:
        """Puts all new values and the next offset of the changelog into RocksDB, in one atomic batch."""
        batch = WriteBatch(raw_mode=True)
        for key, value in self._new.items():
            batch.put(key, value)
        batch.put(CHANGELOG, str(changelog_end).encode())
        self._db.write(batch)
        self._new.clear()

    def close(self) -> None:
        """Closes RocksDB, and forgets what is not committed."""
        self._new.clear()
        self._db.close()


class Loop:
    """The loop: one consumer, one transactional producer, and a RocksDB for each input partition.

    Args:
        broker: The address of the broker.
        name: The input topic, and the group. ``<name>-counts`` gets the counts, ``<name>-changelog`` the state.
        state: The folder of the RocksDBs.
        slot: The number of this process. Two processes need two slots, and two folders.
        kill_at: The step at which the process kills itself.
    """

    def __init__(self, broker: str, name: str, state: Path, slot: str = "0", kill_at: str | None = None) -> None:
        self.name, self.changelog, self.counts = name, f"{name}-changelog", f"{name}-counts"
        self._state, self._kill_at = state, kill_at
        self._broker = {"bootstrap.servers": broker, "log_level": QUIET}
        reading = {**self._broker, "isolation.level": "read_committed", "enable.auto.commit": False}
        reading |= {"enable.auto.offset.store": False, "enable.partition.eof": True}
        # The instance id gives a process that starts again its partitions at once, without a rebalance.
        member = {"group.id": name, "group.instance.id": f"{name}-{slot}", "auto.offset.reset": "earliest"}
        # A start at offset 0 of a changelog that was cut would lose state, so an unknown offset is an error there.
        self._restoring = {**reading, "group.id": f"{name}-restore", "auto.offset.reset": "error"}
        # The stable id lets `init_transactions` end the transaction of a process that was killed.
        sending = {**self._broker, "transactional.id": f"{name}-{slot}", "transaction.timeout.ms": 15_000}
        self._producer = Producer(sending)
        self._producer.init_transactions(PATIENCE_S)
        self._consumer = Consumer({**reading, **member})
        self._consumer.subscribe([name], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        self._to_restore: list[int] = []
        self._partitions: dict[int, PartitionState] = {}
        self._at_end: set[int] = set()
        self._inputs: dict[int, int] = {}  # partition -> next input offset, since the last commit
        self._delivered: dict[int, int] = {}  # partition -> next offset of the changelog
        self._failed: KafkaError | None = None
        self._begun = 0.0  # when the transaction began, by the monotonic clock
        self._taken = 0  # messages since the last commit
        self._commits = 0

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self, *, until_end: bool = False) -> None:
        """Processes messages. With ``until_end`` it returns when all messages are processed and committed.

        Every error ends the process, and its next start decides by what Kafka has committed. So an unknown outcome of
        a commit needs no code of its own.
        """
        while True:
            message = self._consumer.poll(0.05)
            while self._to_restore:
                self._restore(self._to_restore.pop())
            if message is not None:
                self._take(message)
            if self._taken >= COMMIT_EVERY or (self._taken and time.monotonic() - self._begun > COMMIT_S):
                self.commit()
            if until_end and self._partitions and self._at_end >= set(self._partitions):
                self.close()
                return

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self._process(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            self._at_end.add(message.partition())
        else:
            raise KafkaException(error)

    def _process(self, message: Message) -> None:
        if not self._inputs:  # a transaction begins with its first message, because an open one stops all readers
            self._producer.begin_transaction()
            self._begun = time.monotonic()
        number, key = message.partition(), KEY + (message.key() or b"")
        self._at_end.discard(number)
        state = self._partitions[number]
        count = str(int(state.get(key) or b"0") + 1).encode()
        state.set(key, count)
        self._producer.produce(self.counts, count, message.key(), on_delivery=self._on_delivery)
        self._producer.poll(0)
        self._inputs[number] = message.offset() + 1
        self._taken += 1

    # -- the commit ------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commits outputs, state and input offsets in one transaction. RocksDB gets the writes afterwards."""
        if not self._inputs:
            return
        self._step("processed")
        for number, offset in self._inputs.items():
            self._partitions[number].set(INPUT, str(offset).encode())
            for key, value in self._partitions[number].new():
                self._producer.produce(self.changelog, value, key, number, on_delivery=self._on_delivery)
        self._producer.flush(PATIENCE_S)
        if self._failed is not None:
            raise KafkaException(self._failed)
        self._step("sent")
        offsets = [TopicPartition(self.name, number, offset) for number, offset in self._inputs.items()]
        # The group's metadata is of this moment: Kafka refuses the offsets of a former owner of the partitions.
        self._producer.send_offsets_to_transaction(offsets, self._consumer.consumer_group_metadata(), PATIENCE_S)
        self._step("offsets-sent")
        self._producer.commit_transaction(PATIENCE_S)
        self._step("committed")
        for number in self._inputs:
            self._partitions[number].write(self._delivered[number])
        self._inputs.clear()
        self._taken = 0
        self._step("written")
        self._commits += 1

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed = error
        elif message.topic() == self.changelog:
            self._delivered[message.partition()] = message.offset() + 1

    # -- from assigned to running ----------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign(partitions)
        consumer.pause(partitions)  # until their state is restored
        self._to_restore += [each.partition for each in partitions]

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.commit()
        self._forget()

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Another process has the partitions already, so nothing of this transaction may be committed.
        if self._inputs:
            self._producer.abort_transaction(PATIENCE_S)
        self._forget()

    def _forget(self) -> None:
        for state in self._partitions.values():
            state.close()
        self._partitions.clear()
        self._inputs.clear()
        self._to_restore.clear()
        self._at_end.clear()
        self._taken = 0

    def _restore(self, number: int) -> None:
        """Makes RocksDB equal to the committed changelog, then lets the input of the partition be read."""
        # 1. A read_committed consumer gets its offsets only after all pending transactions of the group are decided.
        place = TopicPartition(self.name, number)
        [committed] = self._consumer.committed([place], PATIENCE_S)
        if committed.error is not None:
            raise KafkaException(committed.error)
        # 2. The end is asked for afterwards, and is that of all records, also of open transactions.
        end = end_of(self._broker, TopicPartition(self.changelog, number))
        state = PartitionState(self._state / str(number))
        before = state.position(INPUT)
        replayed = self._replay(number, state, end)
        # 3. State and input offset must be of the same commit.
        if state.position(INPUT) != max(committed.offset, 0):
            raise LoopFailed(
                f"Partition {number}: the state is that of input offset {state.position(INPUT)}, and the group has "
                f"committed {committed.offset}. Offsets or changelog were changed by somebody else."
            )
        self._partitions[number] = state
        self._consumer.resume([place])
        print(
            f"partition {number}: RocksDB had input offset {before}, the group {max(committed.offset, 0)}; "
            f"{replayed} records of the changelog were replayed",
            flush=True,
        )

    def _replay(self, number: int, state: PartitionState, end: int) -> int:
        """Writes the committed records from the local position to ``end`` into RocksDB, and returns their number."""
        start, replayed, deadline = state.position(CHANGELOG), 0, time.monotonic() + PATIENCE_S
        reader = Consumer(self._restoring)
        try:
            low, _ = reader.get_watermark_offsets(TopicPartition(self.changelog, number), PATIENCE_S)
            if start == 0:
                start = low  # a new disk reads the changelog from its first record
            if not low <= start <= end:
                raise LoopFailed(f"Partition {number}: RocksDB needs changelog offset {start}; it has {low} to {end}.")
            reader.assign([TopicPartition(self.changelog, number, start)])
            reached = start
            while reached < end:
                message = reader.poll(0.2)
                if message is None:
                    # Markers of transactions have offsets and are no messages, so the position tells the end, too.
                    [at] = reader.position([TopicPartition(self.changelog, number)])
                    reached = max(reached, at.offset)
                elif (error := message.error()) is None:
                    state.set(message.key(), message.value())
                    reached, replayed = message.offset() + 1, replayed + 1
                    deadline = time.monotonic() + PATIENCE_S
                    if replayed % RESTORED_AT_ONCE == 0:
                        state.write(reached)
                        self._step("restoring")
                elif error.code() == KafkaError._PARTITION_EOF:
                    reached = max(reached, message.offset())
                else:
                    raise KafkaException(error)
                if time.monotonic() > deadline:
                    raise LoopFailed(f"Partition {number}: the changelog stands at {reached}, expected {end}.")
            state.write(reached)
        finally:
            reader.close()
        return replayed

    def close(self) -> None:
        """Commits, and closes everything."""
        self.commit()
        self._consumer.close()
        self._forget()

    def _step(self, step: str) -> None:
        """Marks a step. A process that is to be killed at this step ends here, in its second commit or in a restore."""
        if step == self._kill_at and (step == "restoring" or self._commits == 1):
            os.kill(os.getpid(), signal.SIGKILL)


def end_of(broker: dict[str, Any], place: TopicPartition) -> int:
    """Returns the end of a partition, which records of open transactions and markers count for, too."""
    admin = AdminClient(broker)  # kept until the answer is there: without it, no answer comes
    asked = admin.list_offsets(
        {place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=PATIENCE_S
    )
    return int(asked[place].result().offset)


def main() -> None:
    """Runs the loop with the arguments of the command line."""
    given = argparse.ArgumentParser(description="Counts messages by key, exactly once.")
    given.add_argument("--broker", default="localhost:9092")
    given.add_argument("--name", default="visits", help="the input topic, and the group")
    given.add_argument("--state", type=Path, default=Path("state"), help="the folder of the RocksDBs")
    given.add_argument("--slot", default="0", help="the number of this process")
    given.add_argument("--kill-at", choices=STEPS, help="the step of the second commit to be killed at")
    given.add_argument("--until-end", action="store_true", help="end when all messages are committed")
    chosen = given.parse_args()
    Loop(chosen.broker, chosen.name, chosen.state, chosen.slot, chosen.kill_at).run(until_end=chosen.until_end)


if __name__ == "__main__":
    main()
