"""One setting limits the cache of committed values of a worker. The stores of all its tasks share it."""

import json

from holdfast import Application
from holdfast.infra.settings import load_settings
from holdfast.processors.engine.aggregates.aggregation import Count
from holdfast.processors.engine.runtime.ownership.assignment import Assignment
from holdfast.processors.testing import InlineProcess, InMemoryCluster


def test_stores_of_all_tasks_share_the_memory_of_the_cache(tmp_path, monkeypatch):
    seen = []
    share = Assignment._share_cache

    def shared(self):
        share(self)
        seen.append([state.cache_bytes for task in self.tasks for state in task.states.values()])

    monkeypatch.setattr(Assignment, "_share_cache", shared)
    cluster = InMemoryCluster()
    for name in ("orders", "visits"):
        cluster.create_topic(name, partitions=2)
        for number in range(40):
            cluster.produce(name, json.dumps({"n": number}).encode(), b"k%d" % number)
    bound = 512 << 20
    app = Application(consumer_group="p", auto_offset_reset="earliest", loglevel=None, memory_max_bytes=bound)
    app.dataframe(app.topic("orders")).aggregate({"n": Count()}, store="counted").to_topic(app.topic("out"))
    app.dataframe(app.topic("visits")).apply(lambda value, state: state.set("n", 1), stateful=True, store="visited")
    settings = load_settings(home=tmp_path)
    app.run_on(cluster.connect(InlineProcess(cluster.clock)), settings, count=80, timeout=3.0)
    budget = app._memory(settings).state_cache
    four = [shares for shares in seen if len(shares) == 4]
    assert four, "two tasks of each topic"
    assert set(four[-1]) == {budget // 4}
