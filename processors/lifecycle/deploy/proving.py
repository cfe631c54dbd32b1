"""Proves a version before it replaces the running one: reads the last messages and their state, runs both versions.

Invariants:
    - Nothing is changed: messages are read outside of every group, state from a checkpoint that the owner takes.
    - A version runs in a process of its own, which ends with the operator. A killed stage is simply repeated.
    - What can't be proven does not stop a deploy: the result says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.reader import read_range_for_proof
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.privacy import process_umask
from holdfast.processors.audits.stores import store_partitions
from holdfast.processors.engine.proof import Material, Message, Outcome
from holdfast.processors.engine.serving.client import ProcessorClient
from holdfast.processors.lifecycle.deploy import proof
from holdfast.processors.lifecycle.deploy.deployment import Rollout
from holdfast.processors.lifecycle.plans.apply import Done, Tell
from holdfast.processors.lifecycle.plans.stages import ProveVersion

#: Module that runs a version on the material.
PROGRAM = "holdfast.processors.testing.proof"
#: Longest run of a version, seconds.
RUN_S = 120.0
#: Offsets that are read for one message: transactions and compaction leave offsets without one.
OFFSETS_EACH = 4


@dataclass(frozen=True, slots=True)
class Prover:
    """Carries the stage out.

    Args:
        topics: Topics and the group's offsets.
        client: Processor, slot -> its worker.
        slots: Processor -> its slots.
        stores: Processor -> the stores of its defined version.
        rollout: Processor, release -> how a worker of it is started; None as release for the deployed one.
        scratch: Processor -> folder for the files of its proof, which hold messages; one apply at a time uses it.
    """

    topics: Topics
    client: Callable[[str, str], ProcessorClient]
    slots: Callable[[str], tuple[str, ...]]
    stores: Callable[[str], tuple[str, ...]]
    rollout: Callable[[str, str | None], Rollout]
    scratch: Callable[[str], Path]

    def __call__(self, processor: str, stage: ProveVersion, tell: Tell) -> Done:
        """Prove a version.

        Raises:
            NotProven: It fails where the running version does not.
            HoldfastError: Kafka does not answer.
        """
        material = self._material(processor, stage)
        messages = proof.places(material.messages)
        if not messages:
            return Done(f"{proof.NOT_PROVEN}no input is committed that the topics still hold")
        tell(f"version {stage.code_version} runs on the last {messages} messages")
        new = self._run(processor, stage.release_id, material)
        if isinstance(new, str):
            return Done(f"{proof.NOT_PROVEN}{new}")
        running = None
        if (new.failures or new.broken) and stage.former is not None:
            tell(f"version {stage.former_version} runs on the same messages")
            found = self._run(processor, stage.former, material)
            running = found if isinstance(found, Outcome) else None
        refused = proof.refusal(processor, stage.code_version, stage.former_version, new, running)
        if refused is not None:
            raise refused
        if new.broken:  # neither version runs in memory, so nothing can be compared
            return Done(f"{proof.NOT_PROVEN}{new.broken}")
        return Done(proof.words(stage.code_version, new, running), new.processed)

    def _material(self, processor: str, stage: ProveVersion) -> Material:
        """The last committed messages of each input, and the state of their keys."""
        counts = {name: facts.partitions for name, facts in self.topics.describe(stage.inputs).items()}
        committed = self.topics.committed_offsets(processor)
        starts = self.topics.offsets_of_all(counts, "start")
        messages: dict[str, dict[int, tuple[Message, ...]]] = {}
        for topic, count in counts.items():
            each = -(-stage.messages // count)
            for number in range(count):
                end = committed.get(Partition(topic, number), 0)
                start = max(starts[topic].get(number, 0), end - each * OFFSETS_EACH)
                found = list(self._read(topic, number, start, end))[-each:]
                if found:
                    messages.setdefault(topic, {})[number] = tuple(found)
        return Material(processor, counts, messages, self._state(processor, messages))

    def _read(self, topic: str, number: int, start: int, end: int) -> Iterable[Message]:
        config = self.topics.client_config
        asked = self.topics.bootstrap, topic, number, start, end
        for record in read_range_for_proof(*asked, extra_config=config):
            headers = tuple(record.headers or ())
            yield Message(record.offset, record.key, record.value, record.timestamp_ms, headers)

    def _state(
        self, processor: str, messages: Mapping[str, Mapping[int, tuple[Message, ...]]]
    ) -> dict[str, dict[int, tuple[tuple[bytes, bytes], ...]]]:
        """The state of these messages' keys, from a checkpoint of the workers; empty while none answers."""
        # imported here, so that planning a deploy loads no RocksDB
        from holdfast.processors.engine.state.checkpoint_reader import pairs_of_messages

        wanted: dict[int, set[bytes]] = {}
        for parts in messages.values():
            for number, found in parts.items():
                wanted.setdefault(number, set()).update(each.key for each in found if each.key is not None)
        try:
            manifests = [self.client(processor, slot).checkpoint() for slot in self.slots(processor)]
        except HoldfastError:
            return {}
        return {
            store: {
                part.partition: tuple(pairs_of_messages(Path(part.path), store, sorted(wanted[part.partition])))
                for part in store_partitions(manifests, store)
                if part.partition in wanted
            }
            for store in self.stores(processor)
        }

    def _run(self, processor: str, release: str | None, material: Material) -> Outcome | str:
        """What came of a version in a process of its own; a sentence part when it did not end by itself."""
        rollout = self.rollout(processor, release)
        with _emptied(self.scratch(processor)) as folder:
            given, result, log = folder / "material.json", folder / "result.json", folder / "log"
            given.write_bytes(msgspec.json.encode(material))
            code = () if rollout.release is None else ("--release", str(rollout.release))
            files = ("--material", str(given), "--result", str(result))
            command = [sys.executable, "-P", "-m", PROGRAM, *files, "--parent", str(os.getpid()), *code]
            environment = {**os.environ, **rollout.environment}
            with log.open("wb") as out:
                try:
                    ended = subprocess.run(
                        command,
                        cwd=rollout.project,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        timeout=RUN_S,
                        check=False,
                        umask=process_umask(),
                    )
                except subprocess.TimeoutExpired:
                    return f"version {rollout.code_version} took longer than {RUN_S:.0f} s on the last messages"
            if result.is_file():
                return proof.decode_outcome(result.read_bytes())
            lines = log.read_text(errors="replace").strip().splitlines() or ["no word"]
            return Outcome(broken=f"exit code {ended.returncode}: {lines[-1]}")


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """An empty folder that is deleted at the end; what an operator left who was killed is deleted first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
