"""Inferred columns always follow their values: by a wider type in place, or by another column of the same name."""

from holdfast.processors.engine.schema.evolution import Add, Replace, Widen, changes, inferred_changes
from holdfast.processors.engine.schema.inference import inferred_schema
from holdfast.processors.engine.schema.types import FLOATING, TEXT, Column, Items, Member, Number, Record


def table_of(described: str) -> Record:
    """The typed columns of a table whose values had this description."""
    schema = inferred_schema(described)
    return Record(tuple(Member(each.name, each.type, False, (each.name,)) for each in schema.columns))


def steps(had: str, found: str) -> tuple[object, ...]:
    table = table_of(had)
    return inferred_changes(table, inferred_schema(found, table).columns)


def test_a_column_whose_type_no_longer_holds_is_replaced_as_a_whole() -> None:
    assert steps("OBJECT<a: BIGINT>", "OBJECT<a: DOUBLE>") == (Replace(("a",), FLOATING),)
    assert steps("OBJECT<a: BIGINT>", "OBJECT<a: STRING>") == (Replace(("a",), TEXT),)
    assert steps("OBJECT<a: BOOLEAN>", "OBJECT<a: BIGINT>") == (Replace(("a",), TEXT),)
    assert steps("OBJECT<a: ARRAY<BIGINT>>", "OBJECT<a: ARRAY<DOUBLE>>") == (Replace(("a",), Items(FLOATING)),)
    assert steps("OBJECT<a: OBJECT<b: BIGINT>>", "OBJECT<a: ARRAY<BIGINT>>") == (Replace(("a",), TEXT),)


def test_a_part_that_no_longer_holds_replaces_its_column_once() -> None:
    [step] = steps("OBJECT<a: OBJECT<b: BIGINT, c: BIGINT>>", "OBJECT<a: OBJECT<b: STRING, c: DOUBLE, d: STRING>>")
    assert isinstance(step, Replace)
    assert (step.path, [each.name for each in step.type.members]) == (("a",), ["b", "c", "d"])  # type: ignore[attr-defined]


def test_other_columns_are_changed_in_place() -> None:
    assert steps("OBJECT<a: BIGINT>", "OBJECT<a: BIGINT, b: STRING>") == (Add(("b",), TEXT),)
    assert steps("OBJECT<a: BIGINT>", "OBJECT<b: STRING>") == (Add(("b",), TEXT),)
    assert steps("OBJECT<a: OBJECT<b: BIGINT>>", "OBJECT<a: OBJECT<c: STRING>>") == (Add(("a", "c"), TEXT),)


def test_a_type_never_narrows() -> None:
    for wide, narrow in (("STRING", "BIGINT"), ("DOUBLE", "BIGINT"), ("ARRAY<STRING>", "ARRAY<BIGINT>")):
        assert steps(f"OBJECT<a: {wide}>", f"OBJECT<a: {narrow}>") == ()


def test_a_wider_decimal_is_no_other_column() -> None:
    table = Record((Member("price", Number(10, 2), False, ("price",)),))
    wanted = (Column("price", Number(12, 2), False, (("price",),)),)
    assert inferred_changes(table, wanted) == changes(table, wanted) == (Widen(("price",), Number(12, 2)),)
