"""The answer to a commit is lost. The commit took effect, did not take effect, or takes effect late."""

import pytest

from tests.kafka.faults.proxy import END_TXN, PRODUCE, TXN_OFFSET_COMMIT, Fate
from tests.kafka.faults.verification import finish, verify
from tests.mechanics.tiers import variants

#: A client waits for an answer twice the transaction timeout. A short timeout keeps the test short.
QUICK = {"transaction.timeout.ms": 4000}


STEPS = {"end": END_TXN, "offsets": TXN_OFFSET_COMMIT}
#: The most difficult case first: the transaction ended, but the answer was lost.
UNANSWERED = [(step, fate) for step in STEPS for fate in (Fate.SWALLOW_REPLY, Fate.SWALLOW_REQUEST, Fate.HOLD)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("api_key", "fate"),
    variants([pytest.param(STEPS[step], fate, id=f"{step}-{fate.name}") for step, fate in UNANSWERED]),
)
def test_an_unanswered_step_of_a_commit_loses_and_doubles_nothing(site, on_site, waiting, api_key, fate):
    on_site.feed_numbers(2000)
    rule = site.proxy.on(api_key, fate, nth=3)
    finish(on_site.through, waiting, commit_every=200, commit_interval=2.0, producer_extra_config=QUICK, slot="0")
    assert rule.struck.is_set()
    rule.release.set()  # the held request reaches the broker now, and must not end a later transaction
    on_site.feed_numbers(1000)
    finish(on_site.through, waiting, commit_every=100, producer_extra_config=QUICK, slot="0")
    verify(on_site, on_site.state_dir)


def test_unanswered_records_are_sent_again_without_being_doubled(site, on_site, waiting):
    on_site.feed_numbers(1000)
    rule = site.proxy.on(PRODUCE, Fate.SWALLOW_REPLY, nth=4)
    finish(
        on_site.through,
        waiting,
        commit_every=100,
        producer_extra_config={**QUICK, "socket.timeout.ms": 1500},
        slot="0",
    )
    assert rule.struck.is_set()
    verify(on_site, on_site.state_dir)
