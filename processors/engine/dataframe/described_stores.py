"""The descriptions of an application's stores, made from its steps and from what it declares about stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.processors.engine.dataframe.aggregation import Aggregation
from holdfast.processors.engine.dataframe.as_of import AsOfLeft, AsOfRight
from holdfast.processors.engine.dataframe.count_windows import CountSpec
from holdfast.processors.engine.dataframe.foreign_keys import Answer, ForeignJoined
from holdfast.processors.engine.dataframe.given import StepInvalid
from holdfast.processors.engine.dataframe.joins import IntervalProcessing, TablePut, TableRead
from holdfast.processors.engine.dataframe.node import Node, steps_of
from holdfast.processors.engine.dataframe.recent import Recent
from holdfast.processors.engine.dataframe.store_options import StoreOptions
from holdfast.processors.engine.dataframe.table_joins import JoinedRow, LeftRow, RightRow
from holdfast.processors.engine.dataframe.window_spec import WindowSpec
from holdfast.processors.engine.topology import KEY_VALUE, StoreSpec

if TYPE_CHECKING:
    from holdfast.processors.engine.schema.types import StoreSchema

#: Functions of steps that read rows of a table, and change none; and all that only read the store of their step.
_ROWS = (TableRead, LeftRow, RightRow, Answer)
_READS = (*_ROWS, AsOfLeft)


def described_stores(
    nodes: list[Node], users: Mapping[str, Sequence[str]], declared: Mapping[str, StoreOptions]
) -> tuple[StoreSpec, ...]:
    """The descriptions of an application's stores; ``users`` has by store the topics whose streams use it.

    Raises:
        StepInvalid: Steps that share a store contradict each other.
        SchemaInvalid: A model can't become columns.
    """
    aggregations, schemas = aggregations_by_store(nodes), schemas_by_store(nodes, declared)
    described = []
    for store, topics in users.items():
        if len(topics) > 1 and any(node.unnamed for node in nodes if node.store == store):
            raise StepInvalid(
                f"Store {store!r} is the unnamed store of one stream, and a step of another stream has the same store; "
                f"the streams are {', '.join(topics)}.",
                action=f"Write `store={store!r}` in the steps of both streams to share it, or choose another name.",
                store=store,
            )
        made, options = aggregations.get(store), declared.get(store)
        if made is not None and options is not None:
            raise StepInvalid(
                f"Store {store!r} of {_what(made)} is declared with `app.store`; its values have a form of their own.",
                action=f"Take `app.store({store!r}, ...)` out.",
                store=store,
            )
        kind, columns = (KEY_VALUE, ()) if made is None else (kind_of(made), made.describe())
        columns = columns if options is None else options.describe()
        steps = [node for node in nodes if node.store == store]
        if len(steps) > 1 and any(isinstance(node.function, Recent) for node in steps):
            raise StepInvalid(
                f"Store {store!r} of `drop_duplicates` or `moving_average` is used by {len(steps)} steps, not one.",
                action="Give each of these steps a store of its own: `drop_duplicates(..., store='seen')`.",
                store=store,
            )
        _check_join(store, steps)
        timers = [node for node in steps if node.processing is not None]
        if len(timers) > 1:
            joins = any(isinstance(node.processing, IntervalProcessing) for node in timers)
            of_each = "join_interval(..., name='near')" if joins else "process(..., store='reminders')"
            raise StepInvalid(
                f"Store {store!r} is used by {len(timers)} steps with timers, expected one: it fires its timers.",
                action=f"Give each of them a store of its own: `{of_each}`.",
                store=store,
            )
        columns = (*columns, *("timers" for _ in timers))
        timed = bool(timers) or (options is not None and options.expires)
        described.append(StoreSpec(store, tuple(topics), kind, columns=columns, schema=schemas.get(store), timed=timed))
    return tuple(described)


def with_meaning(stores: Sequence[StoreSpec], sources: Mapping[str, Node]) -> tuple[StoreSpec, ...]:
    """The same stores with the meaning of their steps, and of all steps before these; ``sources`` are by topic.

    What ``group_by`` makes of a key counts up to the next ``group_by``, which gives the messages another one.
    """
    nodes, before = steps_of(sources.values()), dict[int, list[Node]]()
    for node in nodes:
        for child in node.children:
            before.setdefault(id(child), []).append(node)
        if node.topic is not None and node.topic.name in sources and node.topic.repartitions:
            before.setdefault(id(sources[node.topic.name]), []).append(node)
    made = []
    for store in stores:
        writers = [node for node in nodes if node.store == store.name and not isinstance(node.function, _READS)]
        found, seen, todo = list[str](), set[tuple[int, bool]](), [(node, False) for node in writers]
        while todo:
            node, is_regrouped = todo.pop()
            if (id(node), is_regrouped) in seen:
                continue
            seen.add((id(node), is_regrouped))
            regroups = node.topic is not None and node.topic.repartitions
            found += () if regroups and is_regrouped else node.meaning
            todo += [(each, is_regrouped or regroups) for each in before.get(id(node), ())]
        made.append(replace(store, meaning=tuple(sorted(set(found)))))
    return tuple(made)


def _check_join(store: str, steps: Sequence[Node]) -> None:
    """Raises StepInvalid if the store of a join or a table has steps of something else."""
    rules = {id(node.function.spec) for node in steps if isinstance(node.function, (AsOfLeft, AsOfRight))}
    tables = [node for node in steps if isinstance(node.function, (TablePut, JoinedRow, ForeignJoined))]
    if not rules and not tables:
        return
    known = (AsOfLeft, AsOfRight) if rules else (TablePut, JoinedRow, ForeignJoined, *_ROWS)
    if len(rules) + len(tables) > 1 or any(not isinstance(node.function, known) for node in steps):
        raise StepInvalid(
            f"Store {store!r} is of one join or table, and a step of another one, or a function, uses it, too.",
            action="Give each its own store: `join_asof(..., name='prices')`, `to_table('planes')`.",
            store=store,
        )


def schemas_by_store(nodes: list[Node], declared: Mapping[str, StoreOptions]) -> dict[str, StoreSchema]:
    """The typed columns of each store with a model, an aggregation or windows; raises as ``described_stores``."""
    modelled: dict[str, Node | StoreOptions] = {
        store: options for store, options in declared.items() if options.model is not None
    }
    for node in nodes:
        if node.store is None or (node.model is None and node.aggregation is None and node.window is None):
            continue
        other = modelled.setdefault(node.store, node)
        if other.model != node.model:
            raise StepInvalid(
                f"Store {node.store!r} has different models: {other.model!r} and {node.model!r}.",
                action="Keep `model` in one of its steps, or in `app.store`.",
                store=node.store,
            )
    if not modelled:
        return {}
    # Descriptions need these modules, workers do not.
    from holdfast.processors.engine.dataframe.aggregate_columns import (
        aggregate_schema,
        count_window_schema,
        window_schema,
    )
    from holdfast.processors.engine.schema.models import schema_of

    made: dict[str, StoreSchema] = {}
    for store, each in modelled.items():
        aggregation, window = (each.aggregation, each.window) if isinstance(each, Node) else (None, None)
        if isinstance(window, WindowSpec):
            made[store] = window_schema(window.aggregation)
        elif isinstance(window, CountSpec):
            made[store] = count_window_schema(window)
        else:
            made[store] = schema_of(each.model) if aggregation is None else aggregate_schema(aggregation, each.model)
    return made


def kind_of(made: Aggregation | WindowSpec | CountSpec) -> str:
    """The kind of a store of an aggregation or of windows."""
    if isinstance(made, CountSpec):
        return "count-window"
    return "window" if isinstance(made, WindowSpec) else "aggregation"


def _what(made: Aggregation | WindowSpec | CountSpec) -> str:
    return "an aggregation" if isinstance(made, Aggregation) else "a window"


def aggregations_by_store(nodes: list[Node]) -> dict[str, Aggregation | WindowSpec | CountSpec]:
    """The aggregation or window of each store of one; raises StepInvalid if another step uses the same store."""
    users: dict[str, list[Node]] = {}
    for node in nodes:
        if node.store is not None:
            users.setdefault(node.store, []).append(node)
    found = {}
    for store, steps in users.items():
        alone = [step.aggregation or step.window for step in steps]
        aggregation = next((made for made in alone if made is not None), None)
        if aggregation is None:
            continue
        if len(steps) > 1:
            raise StepInvalid(
                f"The store {store!r} of {_what(aggregation)} is used by {len(steps)} steps, expected one.",
                action="Give each aggregation and each window a store of its own: `aggregate(..., store='totals')`, "
                "`tumbling_window(..., name='hours')`.",
                store=store,
            )
        found[store] = aggregation
    return found
