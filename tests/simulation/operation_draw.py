"""Draws courses (simulated sequences of operators' commands and faults) from seeds."""

from __future__ import annotations

from random import Random
from typing import Literal

from holdfast.processors.lifecycle.plans.requests import (
    Adopt,
    Backfill,
    Clear,
    Compact,
    Deploy,
    Erase,
    Keys,
    Prefix,
    Provision,
    Replay,
    Reposition,
    Request,
    Restart,
    Restore,
    Rollback,
    Scale,
    Stop,
)
from tests.simulation.erased import KEYS
from tests.simulation.lifecycle_model import OPERATORS_AIMS, WORKERS_AIMS
from tests.simulation.operation_outside import parts_of
from tests.simulation.operation_steps import (
    BROKEN,
    FOR_EVER_S,
    HANGS,
    MUTE,
    Abandon,
    Arrive,
    Ask,
    Both,
    BreakModule,
    Configure,
    CopyRegistry,
    Course,
    Define,
    DeleteRun,
    Drift,
    End,
    ExpireOffsets,
    Feed,
    Intrude,
    KillWorker,
    Occupy,
    Pause,
    ReplaceRegistry,
    SetClock,
    Signal,
    Silent,
    Spoil,
    Step,
    Upgrade,
    Wait,
)
from tests.simulation.workload import GROUP

#: Points at which an operator's process is killed or interrupted. Points in the middle of an apply (execution of a
#: plan) are listed twice, so that they are drawn more often.
AIMS = (
    *OPERATORS_AIMS,
    "deployer.apply",
    "deployer.start_program",
    "deployer.start_program",
    "deployer.stop_program",
    "deployer.stop_program",
    "deployer.programs",
    "http:/status",
    "http:/status",
    "registry.",
)
#: Points at which an operator that erases a key is killed or interrupted: in each of its stages.
ERASURES_AIMS = (
    *AIMS,
    "kafka:read",
    "kafka:read",
    "disk:copies",
    "disk:delete",
    "registry.erasures",
    "registry.erasures",
    "http:/state/clear",
    "http:/state/clear",
    "http:/compact",
    "alter",
    "alter",
)
#: What a course has outside -> the points at which a worker is killed that calls it, or commits what it has answered.
OUTSIDE_AIMS = {
    "calls": ("commit:before", "commit:sent", "commit:after", "disk:write:before"),
    "table": ("table:write:before", "table:commit:before", "table:write:after", "commit:before"),
    "files": ("files:write:after", "files:move:before", "files:move:after", "files:remove", "commit:after"),
    "server": ("request:before", "request:after", "commit:before"),
}
SIGNALS: tuple[Signal, ...] = ("SIGINT", "SIGHUP", "SIGKILL")
#: Kind of tick (one run of a sensor) -> the points (places in a call) at which such a tick is killed or interrupted.
#: `tick` is a tick of the recovery sensor; `hook` is a tick of the sensor that posts to the webhook.
TICKS_AIMS = {
    "tick": ("", "", "registry.", "registry.open_incident", "http:", "deployer."),
    "hook": ("", "", "registry.", "webhook", "dagster."),
}
SILENT: tuple[Literal["broker", "supervisor"], ...] = ("broker", "supervisor")
#: Points (places in a call where a process may be killed) at which an operator waits for a worker that clears state.
CLEARING = ("http:/state/clear:before", "http:/state/clear:after", "http:/maintenance")
#: Points (places in a call where a process may be killed) at which a change of workers is half done.
HALF = ("deployer.start_program:after", "deployer.stop_program:before", "deployer.stop_program:after", "deployer.apply")


def draw_course(seed: int) -> Course:
    """Draws the course of a seed: its commands and faults, in order."""
    random = Random(f"course {seed}")
    steps: list[Step] = [Feed(random.choice([0.2, 0.5]))]
    for _ in range(random.randint(1, 3)):
        drawn = random.random()
        if drawn < 0.2:
            steps += _draw_half(random)
        elif drawn < 0.45:
            steps += _draw_surprise(random)
        if drawn >= 0.2:
            steps += _draw_verb(random)
        if has_letters(seed) and random.random() < 0.7:
            steps.append(Ask(Replay(GROUP), _draw_end(random, AIMS) if random.random() < 0.7 else None))
        if random.random() < 0.4:
            steps.append(Feed(random.choice([0.2, 0.5])))
        if random.random() < 0.2:
            steps.append(KillWorker(random.choice(["w", "run"]), _draw_end(random, WORKERS_AIMS)))
        if random.random() < 0.7:
            steps.append(Wait(random.choice([0.5, 5.0, 20.0, 62.0])))
    if random.random() < 0.4:
        # after 62 s, an operator on another machine counts as gone, because it has sent no heartbeat for a minute
        steps += [Wait(62.0), Abandon()]
    steps = _draw_more(Random(f"more of course {seed}"), steps)
    steps = _draw_of_dagster(Random(f"dagster of course {seed}"), steps)
    steps = _draw_of_files(Random(f"files of course {seed}"), steps)
    steps = _draw_of_proofs(Random(f"proofs of course {seed}"), steps)
    steps = _draw_of_clears(Random(f"clears of course {seed}"), steps)
    steps = _draw_of_rare_verbs(Random(f"rare verbs of course {seed}"), steps)
    steps = _draw_of_offsets(Random(f"offsets of course {seed}"), steps)
    steps = _draw_of_erasures(Random(f"erasures of course {seed}"), steps)
    steps = _draw_of_outside(Random(f"kills beside outside of course {seed}"), steps, parts_of(seed))
    return tuple(_draw_of_ticks(Random(f"ticks of course {seed}"), steps))


def _draw_of_ticks(random: Random, steps: list[Step]) -> list[Step]:
    """Sometimes inserts steps that kill or interrupt a tick (one run of a sensor) at one of the calls that it makes.

    ``random`` is used only for these steps, so that all other steps of the seed stay the same.
    """
    for _ in range(3):
        if random.random() < 0.1:
            who, signal = random.choice(["tick", "hook"]), random.choice(SIGNALS)
            aim = random.choice(TICKS_AIMS[who])
            steps.insert(random.randint(1, len(steps)), KillWorker(who, End(signal, aim, random.choice([1, 2, 5, 12]))))
    return steps


def _draw_of_outside(random: Random, steps: list[Step], parts: frozenset[str]) -> list[Step]:
    """Inserts steps that kill workers at their accesses to the systems of calls and sinks, while input arrives.

    ``random`` is used only for these steps, so that all other steps of the seed stay the same.
    """
    aims = [aim for part in sorted(parts) for aim in OUTSIDE_AIMS[part]]
    for _ in range(random.randint(1, 3) if parts else 0):
        killed = KillWorker("w", End("SIGKILL", random.choice(aims), random.choice([1, 1, 2, 5])))
        at = random.randint(1, len(steps))
        steps[at:at] = [killed, Feed(random.choice([0.2, 0.5])), Wait(random.choice([5.0, 20.0]))]
    return steps


def _draw_of_rare_verbs(random: Random, steps: list[Step]) -> list[Step]:
    """Sometimes inserts a rarely used verb (operator command), after a step that makes this verb necessary.

    ``random`` is used only for these steps, so that all other steps of the seed stay the same.
    """
    drawn, at = random.random(), random.randint(1, len(steps))
    end = _draw_end(random, AIMS) if random.random() < 0.6 else None
    if drawn < 0.03:
        steps[at:at] = [Drift(), Ask(Provision(GROUP), end)]
    elif drawn < 0.06:
        steps[at:at] = [Wait(5.0), Ask(Backfill(GROUP, "first", "local"), end)]
    elif drawn < 0.09:
        changed: Request = random.choice([Stop(GROUP), Restart(GROUP), Scale(GROUP, random.randint(1, 3), warm_s=0.0)])
        adopted: list[Step] = [Ask(Adopt(GROUP), end)] if random.random() < 0.7 else []
        steps[at:at] = [CopyRegistry(), Ask(changed), Wait(5.0), ReplaceRegistry(), Wait(20.0), *adopted]
    return steps


def _draw_of_offsets(random: Random, steps: list[Step]) -> list[Step]:
    """Sometimes inserts a stop during which the group's offsets expire, mostly followed by the verb that repairs them.

    ``random`` is used only for these steps, so that all other steps of the seed stay the same.
    """
    if random.random() >= 0.04:
        return steps
    end = _draw_end(random, AIMS) if random.random() < 0.5 else None
    asked: Request = random.choice([Reposition(GROUP), Reposition(GROUP), Restart(GROUP), Deploy(GROUP)])
    at = random.randint(1, len(steps))
    expired: list[Step] = [Feed(0.3), Wait(5.0), Ask(Stop(GROUP)), ExpireOffsets(), Ask(asked, end), Wait(20.0)]
    steps[at:at] = expired if random.random() < 0.8 else [*expired[:2], Ask(Stop(GROUP)), ExpireOffsets()]
    return steps


def _draw_more(random: Random, steps: list[Step]) -> list[Step]:
    """Sometimes inserts a pause or a version that does not start, or appends a change that ends half done.

    ``random`` is used only for these steps, so that all other steps of the seed stay the same.
    """
    if random.random() < 0.15:
        steps.insert(random.randint(1, len(steps)), Pause(random.choice(["0", "0", "1"])))
    if random.random() < 0.12:
        at = random.randint(1, len(steps))
        end = _draw_end(random, AIMS) if random.random() < 0.5 else None
        steps[at:at] = [Define(BROKEN), Ask(Deploy(GROUP), end)]
    if random.random() < 0.08:
        steps += _draw_beyond(random)
    elif random.random() < 0.08:
        steps += _draw_hindered(random)
    return steps


def _draw_of_dagster(random: Random, steps: list[Step]) -> list[Step]:
    """Sometimes inserts a full run queue, or a module that cannot be imported, followed by a worker's death."""
    killed = KillWorker("w", End("SIGKILL", after_s=random.choice([0.5, 5.0])))
    at = random.randint(1, len(steps))
    drawn = random.random()
    if drawn < 0.04:
        steps[at:at] = [Occupy(), killed, Wait(20.0)]
    elif drawn < 0.08:
        steps[at:at] = [BreakModule(random.choice([40.0, FOR_EVER_S, FOR_EVER_S])), killed, Wait(20.0)]
    return steps


def _draw_of_files(random: Random, steps: list[Step]) -> list[Step]:
    """Sometimes inserts an edit of the definition that is not deployed, or that changes only the second file."""
    at, drawn = random.randint(1, len(steps)), random.random()
    killed = KillWorker(random.choice(["w", "w0", "w1"]), End("SIGKILL", after_s=random.choice([0.5, 5.0])))
    if drawn < 0.05:
        steps[at:at] = [Define(random.choice(["v2", "v3"])), killed, Wait(20.0)]
    elif drawn < 0.1:
        end = _draw_end(random, AIMS) if random.random() < 0.5 else None
        steps[at:at] = [Define(random.choice(["v1", "v2"]), random.randint(1, 2)), Ask(Deploy(GROUP), end)]
    return steps


def _draw_of_clears(random: Random, steps: list[Step]) -> list[Step]:
    """Sometimes inserts a clear (deletion of keys) with an undo file, mostly while input arrives and a worker dies."""
    if random.random() >= 0.1:
        return steps
    online = Clear(GROUP, selection=random.choice([Prefix("k"), Prefix("k"), Keys(("k0", "k1"))]))
    asked = random.choice([online, online, online, Clear(GROUP), Clear(GROUP, rewind="earliest")])
    between = KillWorker("w", End("SIGKILL", "clear:deletes", random.choice([1, 1, 2, 3])))
    dies = random.choice([between, between, KillWorker("w", _draw_end(random, WORKERS_AIMS))])
    end = _draw_end(random, AIMS) if random.random() < 0.3 else None
    arrives = Arrive(0.3, random.choice(CLEARING))
    first: list[Step] = [Feed(random.choice([0.2, 0.5])), Wait(random.choice([0.5, 5.0])), arrives]
    again: list[Step] = [Feed(0.3), Wait(random.choice([5.0, 62.0])), Ask(asked)]
    at = random.randint(1, len(steps))
    dying: list[Step] = [dies] if random.random() < 0.7 else []
    steps[at:at] = [*first, *dying, Ask(asked, end), *(again if random.random() < 0.7 else [])]
    return steps


def _draw_of_erasures(random: Random, steps: list[Step]) -> list[Step]:
    """Sometimes inserts the erasure of a key, mostly ended on the way, while messages of the key may arrive.

    ``random`` is used only for these steps, so that all other steps of the seed stay the same.
    """
    if random.random() >= 0.08:
        return steps
    asked = Erase(GROUP, random.choice(KEYS))
    end = _draw_end(random, ERASURES_AIMS) if random.random() < 0.8 else None
    first: list[Step] = [Feed(random.choice([0.2, 0.5])), Wait(random.choice([0.5, 5.0]))]
    arriving: list[Step] = [Arrive(0.3, random.choice(CLEARING))] if random.random() < 0.5 else []
    dying: list[Step] = [KillWorker("w", _draw_end(random, WORKERS_AIMS))] if random.random() < 0.3 else []
    again: list[Step] = [Feed(0.3), Wait(random.choice([5.0, 62.0])), Ask(asked)] if random.random() < 0.6 else []
    ended: list[Step] = [Wait(62.0), Abandon()] if random.random() < 0.3 else []
    if random.random() < 0.3:  # it is ended while the changelogs are compacted at once, and then abandoned
        signal: Signal = random.choice(["SIGINT", "SIGHUP", "SIGKILL"])
        end, ended = End(signal, "kafka:read", random.choice([1, 2, 3]), begun=True), [Wait(62.0), Abandon()]
    at = random.randint(1, len(steps))
    steps[at:at] = [*first, *arriving, *dying, Ask(asked, end), *ended, *again]
    return steps


def _draw_of_proofs(random: Random, steps: list[Step]) -> list[Step]:
    """Sometimes inserts a deploy whose proof (trial run) hangs, or whose proof processes no message."""
    if random.random() < 0.07:
        at, version = random.randint(1, len(steps)), random.choice([HANGS, HANGS, MUTE, MUTE, MUTE])
        end = _draw_end(random, AIMS) if random.random() < 0.3 else None
        steps[at:at] = [Feed(0.3), Wait(5.0), Define(version), Ask(Deploy(GROUP), end)]
    return steps


def _draw_beyond(random: Random) -> list[Step]:
    """A scale-down or stop whose operator ends after it has recorded the change, but before it stops a worker."""
    signal: Signal = random.choice(["SIGINT", "SIGHUP", "SIGKILL"])
    if random.random() < 0.4:
        # the wall clock is six hours ahead, so the recorded time of the stop is in the future
        ahead = SetClock(21_600.0, 40.0)
        return [ahead, Ask(Stop(GROUP), End(signal, "deployer.stop_program:before", begun=True)), Wait(62.0), Abandon()]
    end = End(signal, "deployer.remove_all:before", begun=True)
    fewer = Ask(Scale(GROUP, random.randint(1, 2), warm_s=0.0), end)
    return [Ask(Scale(GROUP, 3, warm_s=0.0)), fewer, Wait(62.0), Abandon()]


def has_letters(seed: int) -> bool:
    """Whether failed messages of a seed become dead letters, which can be replayed."""
    return seed % 8 == 5


def _draw_hindered(random: Random) -> list[Step]:
    """A change that ends half done, and a disturbance after it. The resume command alone cannot repair both."""
    signal: Signal = random.choice(["SIGINT", "SIGHUP", "SIGKILL"])
    request = random.choice([Deploy(GROUP), Restart(GROUP), Restore(GROUP)])
    lasts = random.choice([Silent("supervisor", 0.5, FOR_EVER_S), Intrude(0.0, FOR_EVER_S)])
    half = Ask(request, End(signal, random.choice(HALF), begun=True))
    return [Define(random.choice(["v2", "v3"])), half, lasts, Wait(20.0)]


def _draw_half(random: Random) -> list[Step]:
    """A change of workers that ends half done and is abandoned."""
    scaled = Scale(GROUP, random.randint(1, 3), warm_s=0.0)
    request = random.choice([Deploy(GROUP), Deploy(GROUP), scaled, scaled, Restore(GROUP), Restart(GROUP)])
    steps: list[Step] = []
    if isinstance(request, Deploy):
        steps.append(random.choice([Define("v2"), Define("v3"), Configure("256")]))
    if isinstance(request, Scale) and random.random() < 0.5:
        steps.append(Ask(Scale(GROUP, 3, warm_s=0.0)))
    signal: Signal = random.choice(["SIGINT", "SIGHUP", "SIGKILL"])
    steps.append(Ask(request, End(signal, random.choice(HALF), random.choice([1, 1, 2]), begun=True)))
    if random.random() < 0.2:
        steps.append(Upgrade())
    return [*steps, Wait(62.0), Abandon()]


def _draw_surprise(random: Random) -> list[Step]:
    """A disturbance that no command has caused."""
    drawn = random.random()
    worker = random.choice(["w", "w0", "w1"])
    killed = KillWorker(worker, End("SIGKILL", after_s=random.choice([0.5, 5.0])))
    if drawn < 0.2:
        return [Configure(random.choice(["256", "512", "768"])), killed, Wait(20.0)]
    if drawn < 0.4:
        others = KillWorker(random.choice(["w0", "w1"]), End("SIGKILL", after_s=random.choice([0.5, 3.0, 40.0])))
        return [Spoil(random.choice(["0", "1"])), others, Wait(random.choice([5.0, 62.0]))]
    if drawn < 0.6:
        stays = random.choice([20.0, 90.0, FOR_EVER_S])
        return [Intrude(random.choice([0.0, 3.0]), stays), Wait(random.choice([5.0, 20.0])), killed, Wait(20.0)]
    if drawn < 0.8:
        ahead = SetClock(random.choice([21_600.0, 600.0, -1_800.0]), random.choice([5.0, 40.0, 90.0]))
        return [ahead, killed, Wait(random.choice([5.0, 62.0])), killed]
    if drawn < 0.9:
        return [Silent("supervisor", 0.5, FOR_EVER_S), killed, Wait(20.0)]
    runs = KillWorker("run", End("SIGKILL", random.choice(["deployer.", "registry.", ""]), random.choice([1, 5])))
    return [killed, runs, Wait(62.0), runs, Wait(62.0), DeleteRun(), Wait(5.0)]


def _draw_verb(random: Random) -> list[Step]:
    """A verb (operator command) with changes before it and faults during it.

    It may be followed by an abandon or a second request.
    """
    first, second = (
        Ask(_draw_request(random), _draw_end(random, AIMS) if random.random() < share else None) for share in (0.8, 0.4)
    )
    steps: list[Step] = []
    if random.random() < (0.8 if isinstance(first.request, Deploy) else 0.1):
        steps.append(Define(random.choice(["v1", "v2", "v3"])))
    if random.random() < 0.15:
        steps.append(Silent(random.choice(SILENT), random.choice([0.0, 0.5, 3.0]), random.choice([3.0, 20.0, 90.0])))
    if random.random() < 0.2:
        steps.append(KillWorker(random.choice(["w", "w0", "w1"]), _draw_end(random, WORKERS_AIMS)))
    if random.random() < 0.2:
        steps.append(Both(first, second, random.choice([0.0, 0.5, 3.0, 20.0])))
    else:
        steps.append(first)
    drawn = random.random()
    if drawn < 0.2:
        steps += [Wait(random.choice([5.0, 62.0])), Abandon(_draw_end(random, AIMS) if random.random() < 0.3 else None)]
    elif drawn < 0.3:
        steps += [Wait(random.choice([0.5, 62.0])), Ask(first.request)]
    return steps


def _draw_request(random: Random) -> Request:
    verbs: list[Request] = [Restart(GROUP), Stop(GROUP), Rollback(GROUP), Compact(GROUP), Restore(GROUP)]
    cleared = Clear(GROUP, rewind="earliest", export=False)
    scaled = Scale(GROUP, random.randint(1, 3), warm_s=0.0)
    return random.choice([Deploy(GROUP), Deploy(GROUP), Deploy(GROUP), scaled, scaled, scaled, *verbs, cleared])


def _draw_end(random: Random, aims: tuple[str, ...]) -> End:
    """Draws when an operator is ended, mostly early.

    An apply (execution of a plan) takes a few seconds. It passes 10 to 100 points (places in a call where the operator
    may be killed).
    """
    signal: Signal = random.choice(["SIGINT", "SIGHUP", "SIGKILL"])
    drawn, begun = random.random(), aims is AIMS and random.random() < 0.7
    if drawn < 0.25:
        return End(signal, after_s=round(8.0 * random.random() ** 2, 2))
    if drawn < 0.7:
        return End(signal, "", round(80 ** random.random()), begun=begun)
    return End(signal, random.choice(aims), random.choice([1, 1, 1, 2, 3]))
