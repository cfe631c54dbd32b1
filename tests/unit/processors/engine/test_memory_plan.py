"""The setting for a worker's memory: the parts into which it is split, and the smallest value that works."""

import dataclasses

import pytest

from holdfast import Application
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.settings import BASE_BYTES, MEMORY_BYTES_MIN, MemoryTooSmall
from holdfast.processors.engine.memory_plan import plan_memory

MIB = 1 << 20


@pytest.mark.parametrize("total", [MEMORY_BYTES_MIN, 512 * MIB, 1024 * MIB, 16 << 30])
def test_the_parts_fit_into_the_whole(total):
    plan = dataclasses.asdict(plan_memory(total))
    assert plan.pop("total") == total
    overlay = plan.pop("overlay")
    assert BASE_BYTES + sum(plan.values()) + 3 * overlay <= total
    assert min(*plan.values(), overlay) >= 3 * MIB


def test_a_bound_that_leaves_no_room_is_refused_with_the_smallest_that_works():
    with pytest.raises(MemoryTooSmall) as refused:
        plan_memory(100 * MIB)
    assert refused.value.fields == {"seen": 100 * MIB, "smallest": MEMORY_BYTES_MIN}
    assert refused.value.exit_code == EXIT_BAD_CONFIGURATION
    assert "224 MiB" in refused.value.message
    plan_memory(MEMORY_BYTES_MIN)


def test_an_application_refuses_it_when_it_is_declared():
    with pytest.raises(MemoryTooSmall):
        Application("localhost:9092", memory_max_bytes=1 * MIB)


def test_memory_as_backend_needs_changelogs():
    with pytest.raises(Exception, match="every restart would begin without state"):
        Application("localhost:9092", state_backend="memory", use_changelog_topics=False)
