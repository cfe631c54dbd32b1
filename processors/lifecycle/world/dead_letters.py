"""Reads dead letters (records about failed messages), and sends the failed messages to their input topics again.

Each message is sent exactly once, even if the process is killed.

    letter 7 ── transaction: message to its topic + offset 8 of the replay group ──► commit ──► … ──► letters deleted

Invariants:
    - A message and the offset after its letter are in one transaction, so a repeated stage sends no message again.
    - Letters are deleted only up to the committed offsets of the replay group.
    - A letter whose topic is no input of the processor is kept: it is written again to the end of the dead-letter
      topic, with all its headers. This write is in the same transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.records import Partition, Record
from holdfast.infra.kafka.topics.reader import read_range_for_proof
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.lifecycle.plans.apply import Done, ProgressLog
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.dead_letters import LETTERS_MAX, LetterFacts, read_letter, replay_group
from holdfast.processors.lifecycle.plans.stages import RemoveLetters, SendAgain

#: Maximum number of dead letters in one transaction.
AT_ONCE = 500
#: Timeout of each step of a transaction, seconds.
STEP_S = 60.0


class LetterTopics(Protocol):
    """The methods of a Kafka admin client that this module needs to delete records and groups."""

    def delete_before(self, offsets: Mapping[Partition, int]) -> None:
        """Delete the records before these offsets."""

    def delete_group(self, group: str) -> None:
        """Delete a group's offsets; no error if the group does not exist."""


def letter_facts(topics: Topics, processor: str, topic: str, inputs: tuple[str, ...]) -> LetterFacts | None:
    """The facts about the dead letters that were not sent again yet; None if the topic does not exist."""
    if topic not in topics.describe([topic]):
        return None
    starts, ends = _starts(topics, processor, topic), topics.settled_end_offsets(topic)
    sent, errors, versions = Counter[str](), Counter[str](), Counter[str]()
    kept, left, upto = 0, LETTERS_MAX, dict[int, int]()
    for number, end in sorted(ends.items()):
        upto[number] = starts[number]
        for record in islice(_read(topics, Partition(topic, number), starts[number], end), left):
            letter = read_letter(record)
            upto[number], left = record.offset + 1, left - 1
            errors[letter.error] += 1
            versions[letter.version] += 1
            if letter.goes_to(inputs):
                sent[letter.topic] += 1
            else:
                kept += 1
        if left:
            # All letters of the partition were read, so the plan covers it up to its end offset. The offset after the
            # last letter can be smaller, because transaction markers take offsets, too.
            upto[number] = end
    told = (dict(each) for each in (sent, errors, versions))
    to, why, of = told
    return LetterFacts(topic, starts, upto, to, kept, why, of, more=upto != ends)


@dataclass(frozen=True, slots=True)
class LetterStages:
    """Carries out the stages (steps) of a plan about dead letters.

    Args:
        topics: Reads topics and offsets.
        changes: Deletes letters and the replay group; raises if the run no longer holds the apply (execution of the
            plan).
        cluster: Function of a processor that returns the Kafka cluster with the processor's client settings.
        check: Raises HoldLost if the run no longer holds the apply.
    """

    topics: Topics
    changes: LetterTopics
    cluster: Callable[[str], KafkaCluster]
    check: Callable[[], None]

    def __call__(self, processor: str, stage: SendAgain | RemoveLetters, tell: ProgressLog) -> Done:
        """Carry out one stage about dead letters; the result is a text with counts."""
        if isinstance(stage, SendAgain):
            return self._send(processor, stage, tell)
        self.changes.delete_before({Partition(stage.topic, number): end for number, end in stage.ends.items()})
        self.changes.delete_group(replay_group(processor))
        return Done(f"the letters that were sent are deleted from {stage.topic}")

    def _send(self, processor: str, stage: SendAgain, tell: ProgressLog) -> Done:
        group, cluster = replay_group(processor), self.cluster(processor)
        starts = _starts(self.topics, processor, stage.topic)
        metadata, producer = cluster.outside_metadata(group), cluster.producer(f"holdfast-{processor}-replay")
        sent = kept = 0
        try:
            producer.init(STEP_S)
            for number, end in sorted(stage.ends.items()):
                place = Partition(stage.topic, number)
                records = _read(self.topics, place, min(end, starts.get(number, 0)), end)
                while chunk := list(islice(records, AT_ONCE)):
                    self.check()
                    producer.begin()
                    for record in chunk:
                        letter = read_letter(record)
                        if letter.goes_to(stage.inputs):
                            sent += 1
                            producer.produce(
                                letter.topic,
                                record.value,
                                record.key,
                                partition=letter.partition if letter.partition is not None else -1,
                                timestamp_ms=letter.timestamp_ms or record.timestamp_ms,
                                headers=letter.headers,
                            )
                        else:
                            kept += 1
                            time_ms, headers = record.timestamp_ms, record.headers
                            producer.produce(
                                stage.topic, record.value, record.key, timestamp_ms=time_ms, headers=headers
                            )
                    producer.flush(STEP_S)
                    producer.send_offsets({place: chunk[-1].offset + 1}, metadata)
                    producer.commit()
                    tell(f"{count_of(sent, 'message')} sent again")
        finally:
            producer.close()
        also = f"; {count_of(kept, 'letter')} kept" if kept else ""
        return Done(f"{count_of(sent, 'message')} sent again{also}", sent)


def _starts(topics: Topics, processor: str, topic: str) -> dict[int, int]:
    """Partition -> offset of the first letter that was not sent again."""
    done = topics.committed_offsets(replay_group(processor))
    return {
        number: max(first, done.get(Partition(topic, number), 0))
        for number, first in topics.start_offsets(topic).items()
    }


def _read(topics: Topics, place: Partition, start: int, end: int) -> Iterator[Record]:
    return read_range_for_proof(topics.bootstrap, *place, start, end, extra_config=topics.client_config)
