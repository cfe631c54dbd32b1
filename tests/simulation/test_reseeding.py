"""Changelogs were lost, truncated or enabled later. They are rebuilt from local state while faults occur."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from holdfast.infra.kafka.records import Partition
from holdfast.processors.application.application import Application
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.state.databases.task_meta import RESEEDING, TaskMeta
from holdfast.processors.engine.state.errors import StateIncoherent
from tests.mechanics.tiers import variants
from tests.simulation.faults import Faults
from tests.simulation.owner_world import OwnerWorld, check_all, commanded, owner_schedule
from tests.simulation.run import runner
from tests.simulation.schedule import AIMS, Fault, Kind
from tests.simulation.verifier import InvariantBroken
from tests.simulation.world import RECOVERY_S

SEEDS = 100
SHARE = 25
KINDS = [Kind.CRASH, Kind.CRASH, Kind.FREEZE, Kind.STOP, Kind.REBALANCE, Kind.REQUEST, Kind.REQUEST, Kind.BROKERS_DOWN]


def disturb(world: OwnerWorld, random: Random) -> None:
    """Replaces the schedule's faults with a few new ones."""
    faults = tuple(
        Fault(random.choice(KINDS), random.randint(0, 40), random.choice(AIMS)) for _ in range(random.randint(0, 6))
    )
    world.schedule = replace(world.schedule, faults=faults)
    Faults(world)


def damage(world: OwnerWorld, random: Random) -> set[str]:
    """Delete some changelogs, or truncate their tails. Returns the names of the stores."""
    stores = random.sample(world.workload.names, random.randint(1, len(world.workload.names)))
    for store in stores:
        [topic] = [name for name in world.changelogs if f"-{store}-" in name]
        if random.random() < 0.6:
            world.cluster.delete_topic(topic)
            world.cluster.create_topic(topic, world.schedule.partitions, {"cleanup.policy": "compact"})
        else:
            for number in range(world.schedule.partitions):
                place = Partition(topic, number)
                world.cluster.truncate(place, end=random.randint(0, max(0, world.cluster.log_end(place) - 2)))
    world.history._records.clear()
    return set(stores)


def local(world: OwnerWorld, number: int = 0) -> dict[str, dict[bytes, bytes]]:
    """The state on a machine's disk, by task, without the offsets."""
    held = world.machines[number].databases()
    return {path.name: {key: value for key, value in content.items() if key[0]} for _, path, content in held}


def refused(world: OwnerWorld, number: int = 0) -> bool:
    """Whether a worker that starts without `reseed` refuses to use the state."""
    machine, before = world.machines[number], len(world.exits)
    world.start_with = Start()
    machine.wanted = True
    machine.start()

    def over() -> bool:
        return len(world.exits) > before or all(world.owner(at) for at in range(world.schedule.partitions))

    world._until(over, RECOVERY_S, "liveness")
    machine.wanted = False
    machine.stop()
    world._until(lambda: machine.alive is None, RECOVERY_S, "liveness")
    return any(isinstance(failure, StateIncoherent) for failure in world.exits[before:])


def run(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(f"re-seeding of {seed}")
    schedule = owner_schedule(seed, processes=1, faults=(), horizon_s=1.0, retention_s=86_400.0, standby_replicas=0)
    later = random.random() < 0.3
    with commanded(schedule, folder, entries_max=random.choice([1, 2, 3, 10_000])) as world:
        checkpoints = world.settings.checkpoints.model_copy(update={"enabled": False})
        world.settings = world.settings.model_copy(update={"checkpoints": checkpoints})
        for machine in world.machines:
            machine._settings = world.settings
        world.check.look = lambda slot, path, content: None  # type: ignore[method-assign]
        monkeypatch.setattr(world, "_is_expected", lambda failure: True)
        made = world.application
        if later:
            monkeypatch.setattr(world, "application", lambda slot: without_changelogs(made(slot)))
        for partition, messages in enumerate(world.workload.messages):
            world.feed_to(partition, random.randint(1, len(messages)))
        world.settle()
        world._stop_all()
        world.rest(2.0)
        for path in world.machines[0].disk.paths:
            world.machines[0].disk.sync(path)
        if later:
            monkeypatch.setattr(world, "application", made)
            stores = set(world.workload.names)
        else:
            stores = damage(world, random)
        before = local(world)
        needed = refused(world)
        assert local(world) == before, "what is refused stays as it is"

        machine = world.machines[0]
        for _ in range(random.randint(0, 2)):  # each time, faults interrupt the rebuild from local state
            disturb(world, random)
            world.start_with = Start(reseed=frozenset(stores), paused=True)
            machine.wanted = True
            machine.start()
            world.rest(random.choice([0.05, 0.3, 1.0, 3.0]))
            whole = done(world)
            world.strike = None
            world.heal()
            if machine.process is not None:
                machine.process.kill()
                machine.disk.release(machine.process)
            machine.wanted = False
            world.rest(40.0)
            assert local(world) == before
            if not whole and marked(world):
                assert refused(world), "a part of the changelog passed for the state"
            if not refused(world, 1):  # machine 1 has no local state, so it restores from the changelogs
                assert local(world, 1) == before, "a part of the changelog passed for the state"
            world.machines[1].disk.lose()
        disturb(world, random)
        world.start_with = Start(reseed=frozenset(stores), paused=True)
        machine.wanted = True
        machine.start()
        world._until(lambda: world._keep_up() or done(world), RECOVERY_S, "liveness")
        assert local(world) == before
        assert needed or not later
        world.resume()
        for partition, messages in enumerate(world.workload.messages):
            world.feed_to(partition, len(messages))
        check_all(world)


def done(world: OwnerWorld) -> bool:
    return all(world.owner(number) for number in range(world.schedule.partitions))


def marked(world: OwnerWorld) -> bool:
    found = [content.get(META_KEY) for _, _, content in world.machines[0].databases()]
    metas = [TaskMeta.decode(raw) for raw in found if raw is not None]
    return any(at.topic_id == RESEEDING for meta in metas for at in meta.stores.values())


def without_changelogs(app: Application) -> Application:
    app._use_changelogs = False
    return app


@pytest.mark.parametrize("first", variants(range(0, SEEDS, SHARE), tested=1, quick=1))
def test_a_changelog_is_whole_again_and_no_part_of_it_passes_for_it(
    tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with runner():
        for seed in range(first, first + SHARE):
            try:
                run(seed, tmp_path, monkeypatch)
            except (InvariantBroken, AssertionError) as broken:
                raise AssertionError(f"seed {seed}: {broken}") from broken
