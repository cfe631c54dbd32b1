"""Plan ``replay``: send the messages of dead letters again to the input topics that they came from.

A message is sent to its original topic and partition, with its original key, value, timestamp and headers. Every reader
of that topic gets the message, so the plan names the readers.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.dead_letters import LETTERS_MAX, LetterFacts
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, read_facts
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Replay
from holdfast.processors.lifecycle.plans.stages import RemoveLetters, SendAgain


def read(request: Replay, source: FactSource, topology: Topology) -> Facts:
    """Reads the data that the plan needs, including the dead letters if there is a dead-letter topic."""
    facts, spec = read_facts(topology, source), topology.dead_letter
    inputs = tuple(each.name for each in topology.sources)
    letters = None if spec is None else source.letters(request.processor, spec.name, inputs)
    return replace(facts, letters=letters)


def plan(request: Replay, facts: Facts, topology: Topology) -> Plan:
    """The plan that sends dead letters' messages again; letters without a message of a present input are kept."""
    name, spec, letters = request.processor, topology.dead_letter, facts.letters
    if spec is None:
        verdict = Refused(
            f"Application {name} has no dead-letter topic, so nothing was put aside.",
            f"Set `dead_letter_topic` in its definition, and deploy it: `holdfast apply deploy {name}`.",
            {"processor": name},
        )
        return Plan(request=request, verdict=verdict)
    if letters is None or not letters.sent:
        kept = 0 if letters is None else letters.kept
        why = f"{spec.name} has {count_of(kept, 'dead letter')} that no input takes." if kept else "No letter is there."
        return Plan(request=request, verdict=NothingToDo(why), findings=_found(facts, letters))
    number = sum(letters.sent.values())
    to = ", ".join(f"{count} to {topic}" for topic, count in sorted(letters.sent.items()))
    rest = f"; write {count_of(letters.kept, 'letter')} that no input takes behind the others" if letters.kept else ""
    inputs = tuple(each.name for each in topology.sources)
    return Plan(
        request=request,
        verdict=Ready(f"send {count_of(number, 'dead letter')} of {spec.name} again."),
        stages=(
            SendAgain(f"send {to}, each to its own partition, in transactions{rest}", spec.name, letters.ends, inputs),
            RemoveLetters(f"delete these letters from {spec.name}", spec.name, letters.ends),
        ),
        findings=_found(facts, letters),
        kept=("State and input offsets. A message that fails again becomes a new dead letter.",),
        deleted=(f"{count_of(number, 'dead letter')} of {spec.name}, after the messages are in their topics",),
        undo="None: what was sent can't be taken back. Messages that fail again become dead letters again.",
        seconds=2.0 + number / 2_000,
        estimate="some thousand messages per second",
        basis={"letters": letters},
        # The offsets of the replay group record the progress. So a resumed apply (execution of the plan) sends no
        # letter twice.
        after_kill="go on",
    )


def _found(facts: Facts, letters: LetterFacts | None) -> tuple[str, ...]:
    if letters is None:
        return ()
    found = [
        f"{count_of(number, 'letter')} with {error or 'no error'}" for error, number in sorted(letters.errors.items())
    ]
    same = letters.versions.get(facts.deployed or "", 0)
    if same:
        found.append(
            f"{count_of(same, 'letter')} failed in version {facts.deployed}, which is deployed: they fail again unless "
            "the cause was outside of it"
        )
    found += [
        f"every reader of {topic} gets the messages again, not only {facts.processor}" for topic in sorted(letters.sent)
    ]
    if letters.more:
        found.append(f"there are more: one plan sends the oldest {LETTERS_MAX:,}; repeat it for the rest")
    return tuple(found)
