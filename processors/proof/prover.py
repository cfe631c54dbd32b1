"""Tests (proves) a version before it replaces the running version: runs both versions on the last messages.

Invariants:
    - A proof changes no state and no topic. It reads messages without a consumer group. It reads state from a
      checkpoint that the owner takes.
    - A version runs in a separate process, which ends when this process ends. If this process is killed, the resumed
      apply (execution of the deploy plan) repeats the proof.
    - If a version cannot be tested, the deploy continues. The proof's result is then the reason why the version was not
      tested.
    - Messages and state are in memory and in open files without names, so a kill leaves no data behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.masking import masked
from holdfast.infra.system.privacy import process_umask
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.plans.apply import Done, ProgressLog
from holdfast.processors.lifecycle.plans.stages import ProveVersion
from holdfast.processors.proof import refusal
from holdfast.processors.proof.documents import Material, Outcome
from holdfast.processors.proof.gathering import last_messages, state_of

#: Name of the folder, beside a processor's releases, for temporary files of the functions of a tested version.
PROOF = ".proof"
#: Python module that runs one version on the messages.
PROGRAM = "holdfast.processors.proof.run"
#: Maximum seconds that a version may run.
RUN_S = 120.0
#: Additional seconds after ``RUN_S``. In this time, a process that hangs writes its traceback.
LAST_WORDS_S = 10.0


@dataclass(frozen=True, slots=True)
class Prover:
    """Tests versions of processors before they are deployed. It carries out the stage ``ProveVersion`` of a plan.

    Args:
        topics: Access to topics and to the group's offsets.
        client: Function of processor and slot (one for each worker) that returns the client of that worker.
        slots: Function of a processor that returns its slots.
        stores: Function of a processor that returns the stores of the version in the project's files.
        rollout: Function of processor and release id that returns how to run the processor (rollout). Release None
            means the deployed release.
        scratch: Function of a processor that returns a folder for temporary files of the processor's functions. Only
            one apply (execution of a plan) uses the folder at a time.
    """

    topics: Topics
    client: Callable[[str, str], ProcessorClient]
    slots: Callable[[str], tuple[str, ...]]
    stores: Callable[[str], tuple[str, ...]]
    rollout: Callable[[str, str | None], Rollout]
    scratch: Callable[[str], Path]

    def __call__(self, processor: str, stage: ProveVersion, tell: ProgressLog) -> Done:
        """Test a version on the last messages; returns the result as text.

        Raises:
            NotProven: The version fails or hangs on messages that the running version processes.
            HoldfastError: Kafka does not answer.
        """
        counts, messages = last_messages(self.topics, processor, stage)
        number = refusal.places(messages)
        if not number:
            return Done(f"{refusal.NOT_PROVEN}no input is committed that the topics still hold")
        try:
            manifests = [self.client(processor, slot).checkpoint() for slot in self.slots(processor)]
            state, lacking = state_of(messages, self.stores(processor), manifests)
        except HoldfastError as failed:
            return Done(f"{refusal.NOT_PROVEN}the state of the messages' keys could not be read: {failed.message}")
        material = Material(processor, counts, messages, state)
        tell(f"version {stage.code_version} runs on the last {number} messages")
        new = self._run(processor, stage.release_id, material)
        new = msgspec.structs.replace(new, gaps=(*lacking, *new.gaps))
        running = None
        if stage.former is not None:
            tell(f"version {stage.former_version} runs on the same messages")
            running = self._run(processor, stage.former, material)
        refused = refusal.refusal(processor, stage.code_version, stage.former_version, new, running)
        if refused is not None:
            raise refused
        return Done(refusal.words(stage.code_version, stage.former_version, new, running), new.processed)

    def _run(self, processor: str, release: str | None, material: Material) -> Outcome:
        """Run one version on the messages and state of the proof, in a separate process; returns its outcome."""
        rollout = self.rollout(processor, release)
        with _emptied(self.scratch(processor)) as folder, _open_files(3) as (given, result, log):
            given.write(msgspec.json.encode(material))
            given.seek(0)
            code = () if rollout.release is None else ("--release", str(rollout.release))
            files = ("--material", str(given.fileno()), "--result", str(result.fileno()))
            limits = ("--seconds", str(RUN_S), "--parent", str(os.getpid()))
            try:
                ended = subprocess.run(
                    [sys.executable, "-P", "-m", PROGRAM, *files, *limits, *code],
                    cwd=rollout.project,
                    env={**os.environ, **rollout.environment, "TMPDIR": str(folder)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=RUN_S + LAST_WORDS_S,
                    check=False,
                    umask=process_umask(),
                    pass_fds=(given.fileno(), result.fileno()),
                )
            except subprocess.TimeoutExpired:
                return Outcome(broken=refusal.hung(RUN_S, ""))
            result.seek(0)
            if told := result.read():
                return refusal.decode_outcome(told)
            log.seek(0)
            text = log.read().decode(errors="replace")
            if refusal.TIMED_OUT in text:
                return Outcome(broken=refusal.hung(RUN_S, text.rpartition(refusal.TIMED_OUT)[2]))
            lines = text.strip().splitlines() or ["no word"]
            return Outcome(broken=f"ended with exit code {ended.returncode}: {masked(lines[-1])}")


@contextmanager
def _open_files(number: int) -> Iterator[tuple[IO[bytes], ...]]:
    """Opens this number of empty files that have no name in the file system.

    Other programs cannot read these files. The kernel deletes them when the processes that opened them end.
    """
    with ExitStack() as files:
        yield tuple(files.enter_context(tempfile.TemporaryFile()) for _ in range(number))


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """Creates an empty folder, which is deleted when the block ends.

    If a killed run left the folder, its content is deleted first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
