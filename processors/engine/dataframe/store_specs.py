"""Describes the stores of an application, from its steps and its store declarations."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.processors.engine.changelog.codec_table import DEFAULT
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.in_place import is_loaded, state_of
from holdfast.processors.engine.steps.node import Node, steps_of
from holdfast.processors.engine.steps.step import Kept, StoreForm
from holdfast.processors.engine.steps.store_options import BY_VALUE, StoreOptions
from holdfast.processors.engine.topology import CALLS, KEY_VALUE, StoreSpec

if TYPE_CHECKING:
    from holdfast.processors.engine.schema.types import StoreSchema


def declare_ttl_calls(nodes: Iterable[Node], declared: dict[str, StoreOptions]) -> None:
    """Declares the stores in which a step's function sets values with ``ttl=``.

    Programs of Quix Streams declare no store for ``state.set(..., ttl=)``. A store that ``app.store`` declares stays as
    it is.
    """
    for node in nodes:
        if node.store is not None and node.store not in declared and _sets_ttl(node.function):
            declared[node.store] = StoreOptions(node.store, ttl=BY_VALUE)


def _sets_ttl(function: Any) -> bool:
    """Whether a function calls ``set`` or ``set_bytes`` of its last argument, the state, with the argument ``ttl``."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    state, last, sets = state_of(code), None, False
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD") and each.argval in ("set", "set_bytes"):
            sets = sets or is_loaded(last, state)
        # The names of a call's arguments are a constant. Python 3.11 shows only its number.
        named = code.co_consts[each.arg] if each.opname == "KW_NAMES" and each.arg is not None else each.argval
        if sets and isinstance(named, tuple) and "ttl" in named:
            return True
        last = each
    return False


def described_stores(
    nodes: list[Node], users: Mapping[str, Sequence[str]], declared: Mapping[str, StoreOptions]
) -> tuple[StoreSpec, ...]:
    """Returns the descriptions of an application's stores.

    ``users`` maps each store to the topics of the streams that use it.

    Raises:
        StepInvalid: Steps that can't share a store use the same store, or a step's store has unsuitable options.
        SchemaInvalid: A model can't become columns.
    """
    kept, schemas = kept_by_store(nodes), schemas_by_store(nodes, declared)
    retracting = _retracting(nodes)
    described = []
    for store, topics in users.items():
        if len(topics) > 1 and any(node.unnamed for node in nodes if node.store == store):
            raise StepInvalid(
                f"Store {store!r} is the unnamed store of one stream, and a step of another stream has the same store; "
                f"the streams are {', '.join(topics)}.",
                action=f"Write `store={store!r}` in the steps of both streams to share it, or choose another name.",
                store=store,
            )
        made, options = kept.get(store), declared.get(store)
        if made is not None and options is not None:
            raise StepInvalid(
                f"Store {store!r} of {made.called} is declared with `app.store`; its values have a form of their own.",
                action=f"Take `app.store({store!r}, ...)` out.",
                store=store,
            )
        kind, columns = (KEY_VALUE, ()) if made is None else (made.store_kind, made.lines())
        columns = columns if options is None else options.describe()
        steps = [node for node in nodes if node.store == store]
        answers = [node.call.answers for node in steps if node.call is not None and node.call.answers is not None]
        kind = CALLS if answers else kind
        if len(steps) > 1 and any(node.store_use.form is StoreForm.OWN for node in steps):
            raise StepInvalid(
                f"Store {store!r} of `drop_duplicates`, `moving_average`, durable calls or a grouped table is used by "
                f"{len(steps)} steps, not one.",
                action="Give each of these steps a store of its own: `drop_duplicates(..., store='seen')`.",
                store=store,
            )
        _check_join(store, steps)
        codec = DEFAULT if options is None else options.codec
        _check_codec(store, codec, steps)
        timers = [node.processing for node in steps if node.processing is not None]
        if len(timers) > 1:
            raise StepInvalid(
                f"Store {store!r} is used by {len(timers)} steps with timers, expected one: it fires its timers.",
                action=f"Give each of them a store of its own: `{min(each.shared_as for each in timers)}`.",
                store=store,
            )
        columns = (*columns, *("timers" for _ in timers))
        uses = [each.use for each in (made, options, *timers) if each is not None and each.use is not None] + answers
        schema = schemas.get(store)
        spec = StoreSpec(store, tuple(topics), kind, codec, columns=columns, schema=schema, uses=tuple(uses))
        described.append(replace(spec, retracts=store in retracting))
    return tuple(described)


def with_meaning(stores: Sequence[StoreSpec], sources: Mapping[str, Node]) -> tuple[StoreSpec, ...]:
    """Returns the stores with their field ``meaning``: text lines about the steps on which their state depends.

    A ``group_by`` has a line about its key. Only stores between this ``group_by`` and the next ``group_by`` get this
    line, because the next one makes other keys.
    """
    nodes, before = steps_of(sources.values()), dict[int, list[Node]]()
    for node in nodes:
        for child in node.children:
            before.setdefault(id(child), []).append(node)
        if node.topic is not None and node.topic.name in sources and node.topic.repartitions:
            before.setdefault(id(sources[node.topic.name]), []).append(node)
    made = []
    for store in stores:
        writers = [node for node in nodes if node.store == store.name and node.store_use.writes]
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


def _retracting(nodes: Sequence[Node]) -> frozenset[str]:
    """Returns the stores whose entries must fit each other, because groups of a table's rows depend on all of them.

    These are the stores of the groups, and the stores of earlier steps that send the deletion of a row only if they
    have the row. The table itself sends every deletion, so its store is not included.
    """
    found = set[str | None]()
    for node in nodes:
        if node.of_engine is None or node.store is None:
            continue
        sends_known = node.expand and node.store_use.form is StoreForm.ROWS and node.store_use.writes
        below = [each.of_engine for each in node.walk()] if sends_known else [node.of_engine]
        if any(step is not None and step.retracts for step in below):
            found.add(node.store)
    return frozenset(store for store in found if store is not None)


def _check_codec(store: str, codec: str, steps: Sequence[Node]) -> None:
    """Raises StepInvalid if a store has a codec but a built-in step writes its values. Such values are always JSON."""
    if codec != DEFAULT and any(node.store_use.form is not StoreForm.VALUES for node in steps):
        raise StepInvalid(
            f"Store {store!r} has the codec {codec!r}, and a built-in step writes its values, which are JSON.",
            action=f"Take `codec` out of `app.store({store!r}, ...)`, or give the step another store.",
            store=store,
        )


def _check_join(store: str, steps: Sequence[Node]) -> None:
    """Raises StepInvalid if the store of a join or a table is also used by other steps."""
    uses = [node.store_use for node in steps]
    joins = {id(use.join) for use in uses if use.form is StoreForm.JOIN}
    tables = [use for use in uses if use.form is StoreForm.ROWS and use.writes]
    if not joins and not tables:
        return
    form = StoreForm.JOIN if joins else StoreForm.ROWS
    if len(joins) + len(tables) > 1 or any(use.form is not form for use in uses):
        raise StepInvalid(
            f"Store {store!r} is of one join or table, and a step of another one, or a function, uses it, too.",
            action="Give each its own store: `join_asof(..., name='prices')`, `to_table('planes')`.",
            store=store,
        )


def schemas_by_store(nodes: list[Node], declared: Mapping[str, StoreOptions]) -> dict[str, StoreSchema]:
    """Returns the typed columns of each store that has a model, an aggregation or windows.

    Raises the errors of ``described_stores``.
    """
    modelled: dict[str, Node | StoreOptions] = {
        store: options for store, options in declared.items() if options.model is not None
    }
    for node in nodes:
        columns = None if node.of_engine is None else node.of_engine.row_columns
        if node.store is None or (node.model is None and node.kept is None and columns is None):
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
    # ``typed_columns`` is imported here, because workers do not need it.
    from holdfast.processors.engine.windows.typed_columns import row_schema, schema_of_store

    made: dict[str, StoreSchema] = {}
    for store, each in modelled.items():
        step = each.of_engine if isinstance(each, Node) else None
        if step is not None and step.row_columns is not None:
            made[store] = row_schema(step.row_columns, each.model)
        else:
            made[store] = schema_of_store(each.kept if isinstance(each, Node) else None, each.model)
    return made


def kept_by_store(nodes: list[Node]) -> dict[str, Kept]:
    """Maps each store of a built-in step (such as a window) to the object that declares what the store contains."""
    users: dict[str, list[Node]] = {}
    for node in nodes:
        if node.store is not None:
            users.setdefault(node.store, []).append(node)
    found = {}
    for store, steps in users.items():
        kept = next((step.kept for step in steps if step.kept is not None), None)
        if kept is None:
            continue
        if len(steps) > 1:
            raise StepInvalid(
                f"The store {store!r} of {kept.called} is used by {len(steps)} steps, expected one.",
                action="Give each aggregation and each window a store of its own: `aggregate(..., store='totals')`, "
                "`tumbling_window(..., name='hours')`.",
                store=store,
            )
        found[store] = kept
    return found
