"""An abandoned download of a checkpoint does not change the task's folder."""

from types import SimpleNamespace

from holdfast import Application
from holdfast.processors.engine.checkpoints.fetch import CheckpointSearch
from holdfast.processors.engine.runtime.ownership.assignment import Assignment
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.testing import InlineProcess, InMemoryCluster


class Keeper:
    """Implements only the method of a checkpoint keeper that deletes a downloaded checkpoint."""

    def __init__(self, databases):
        self._databases = databases

    def discard(self, fetched):
        if fetched.path is not None:
            self._databases.clear(fetched.path)


def test_the_state_of_a_task_whose_download_was_too_slow_is_there_after_the_stop(tmp_path):
    cluster, databases, folder = InMemoryCluster(), RocksDatabases(), StateFolder(tmp_path, "orders", None)
    options = Application(consumer_group="orders", auto_offset_reset="earliest")._options()
    view = cluster.connect(InlineProcess(cluster.clock))
    assignment = Assignment(None, view, folder, databases, options, Keeper(databases))
    task = assignment._tasks["orders-0"] = Task("orders-0", "orders", 0, ("orders",))
    slow = SimpleNamespace(done=False, progress={}, result=None, failure=None, cancel=lambda: None)
    impatient = SimpleNamespace(spent=lambda now, received: "it is too slow")
    assignment._fetching[task.name] = task, CheckpointSearch(task.name, slow, impatient)
    assignment._look_at_fetches()
    assert assignment.pending == [task]
    path = folder.task(task.name)
    task.open(TaskStore(databases, path), ("counts",))
    task.store.write([(b"k", b"v")], TaskMeta(transaction=5))
    assignment.close_all()
    kept = TaskStore(databases, path)
    assert kept.meta().transaction == 5
    kept.close()
