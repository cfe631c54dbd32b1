"""Connections that break in the middle of a commit: the client library reconnects and resends at once."""

import pytest

from tests.kafka.faults.proxy import ADD_OFFSETS, END_TXN, PRODUCE, REFUSED, TXN_OFFSET_COMMIT, Fate
from tests.kafka.faults.verification import finish, verify
from tests.mechanics.tiers import variants


@pytest.mark.parametrize(
    "fate",
    variants([pytest.param(Fate.SWALLOW_REPLY, id="after it"), pytest.param(Fate.SWALLOW_REQUEST, id="before it")]),
)
@pytest.mark.parametrize(
    "api_key",
    variants(
        [
            pytest.param(END_TXN, id="end"),
            pytest.param(PRODUCE, id="records"),
            pytest.param(ADD_OFFSETS, id="adding"),
            pytest.param(TXN_OFFSET_COMMIT, id="offsets"),
        ],
    ),
)
def test_a_connection_cut_at_a_step_of_a_commit_loses_and_doubles_nothing(site, on_site, waiting, api_key, fate):
    on_site.feed_numbers(2000)
    rules = [site.proxy.on(api_key, fate, nth=nth, cut=True) for nth in (3, 5)]
    finish(on_site.through, waiting, commit_every=200, commit_interval=2.0, slot="0")
    assert all(rule.struck.is_set() for rule in rules)
    verify(on_site, on_site.state_dir)


@pytest.mark.thorough
def test_an_end_that_outlives_its_cut_connection_meets_another_epoch(site, on_site, waiting):
    on_site.feed_numbers(2000)
    late = site.proxy.on(END_TXN, Fate.HOLD, nth=3, cut=True)

    def arrive():
        late.release.set()
        assert late.answered.wait(30)

    meets = site.proxy.on(TXN_OFFSET_COMMIT, Fate.CALL, nth=4, call=arrive)
    finish(on_site.through, waiting, commit_every=200, commit_interval=2.0, slot="0")
    assert meets.struck.is_set()
    assert late.error in REFUSED
    verify(on_site, on_site.state_dir)
