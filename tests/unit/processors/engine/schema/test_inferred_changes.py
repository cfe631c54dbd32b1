"""Inferred columns follow their values: a column gets a wider type, or is replaced by a new column of the same name."""

from holdfast.processors.engine.schema.evolution import (
    Add,
    Replace,
    Widen,
    changes,
    from_spark,
    inferred_changes,
    reads_objects_again,
)
from holdfast.processors.engine.schema.inference import inferred_schema, name_in_json
from holdfast.processors.engine.schema.types import FLOATING, TEXT, WHOLE, Column, Items, Member, Number, Record


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


def test_the_column_of_whole_values_is_made_again_with_the_first_column_of_a_field() -> None:
    whole = Record((Member("content", TEXT, False, ("",)),))
    found = inferred_changes(whole, inferred_schema("OBJECT<a: BIGINT>", whole).columns)
    assert found == (Add(("a",), WHOLE), Replace(("content",), TEXT))
    mixed = Record((*whole.members, Member("a", WHOLE, False, ("a",))))
    assert inferred_changes(mixed, inferred_schema("OBJECT<b: BIGINT>", mixed).columns) == (Add(("b",), WHOLE),)


def test_objects_without_columns_are_read_again_where_whole_values_get_one() -> None:
    empty, fields = Record(()), table_of("OBJECT<a: BIGINT>")
    assert reads_objects_again(empty, inferred_schema("OBJECT<>", empty, "STRING").columns)
    assert not reads_objects_again(empty, inferred_schema("OBJECT<a: BIGINT>", empty, "STRING").columns)
    assert not reads_objects_again(fields, inferred_schema("OBJECT<>", fields, "STRING").columns)


def test_a_type_never_narrows() -> None:
    for wide, narrow in (("STRING", "BIGINT"), ("DOUBLE", "BIGINT"), ("ARRAY<STRING>", "ARRAY<BIGINT>")):
        assert steps(f"OBJECT<a: {wide}>", f"OBJECT<a: {narrow}>") == ()


def test_a_wider_decimal_is_no_other_column() -> None:
    table = Record((Member("price", Number(10, 2), False, ("price",)),))
    wanted = (Column("price", Number(12, 2), False, (("price",),)),)
    assert inferred_changes(table, wanted) == changes(table, wanted) == (Widen(("price",), Number(12, 2)),)


def names(described: str, table: Record | None = None) -> dict[str, str]:
    """By name in the JSON values: the name of its column."""
    columns = inferred_schema(described, table).columns
    assert all((name_in_json(each.comment) or each.name) == each.paths[0][0] for each in columns)
    return {each.paths[0][0]: each.name for each in columns}


def stored(described: str, table: Record | None = None) -> Record:
    """The columns of a table as Spark describes them after a snapshot of values with this description."""
    columns = inferred_schema(described, table).columns
    fields = [{"name": each.name, "type": "long", "metadata": {"comment": each.comment}} for each in columns]
    return from_spark({"fields": fields})


def test_names_that_give_one_column_are_told_apart_whatever_their_order() -> None:
    both = {"x": "x", "X": "X_4b68"}
    assert names("OBJECT<X: BIGINT, x: BIGINT>") == names("OBJECT<x: BIGINT, X: BIGINT>") == both
    first = stored("OBJECT<x: BIGINT>")
    assert names("OBJECT<X: BIGINT>", first) == both
    assert names("OBJECT<x: BIGINT>", stored("OBJECT<X: BIGINT>", first)) == both
    capital = stored("OBJECT<X: BIGINT>")
    assert names("OBJECT<x: BIGINT>", capital) == {"X": "X", "x": "x_2d71"}
    assert names("OBJECT<x: BIGINT, X: BIGINT>", stored("OBJECT<x: BIGINT>", capital)) == {"X": "X", "x": "x_2d71"}
    assert names("OBJECT<`a b`: BIGINT, a_b: BIGINT>") == {"a_b": "a_b", "a b": "a_b_c868"}
    assert names("OBJECT<a_b: BIGINT>", stored("OBJECT<`a b`: BIGINT>")) == {"a b": "a_b", "a_b": "a_b_648f"}
    assert names("OBJECT<key: BIGINT, KEY: BIGINT>") == {"key": "key_", "KEY": "KEY__5ca2"}


def test_a_column_of_an_earlier_version_has_no_comment_and_stays_that_of_its_name() -> None:
    table = Record((Member("a_b", WHOLE, False, ("a_b",)), Member("key_", WHOLE, False, ("key_",))))
    schema = inferred_schema("OBJECT<`a b`: BIGINT, key: BIGINT>", table)
    assert {each.name: each.paths for each in schema.columns} == {"a_b": (("a b",),), "key_": (("key",),)}


def test_an_object_within_a_value_whose_names_differ_in_case_only_is_json_text() -> None:
    assert inferred_schema("OBJECT<a: OBJECT<x: BIGINT, X: BIGINT>>").columns[0].type == TEXT


def test_values_that_are_no_objects_have_a_column_beside_those_of_objects() -> None:
    schema = inferred_schema("OBJECT<a: BIGINT, content: STRING>", None, "ARRAY<BIGINT>")
    assert {each.name: each.paths for each in schema.columns} == {
        "a": (("a",),),
        "content": (("content",),),
        "content_e3b0": ((),),
    }
    fields = [{"name": each.name, "type": "long", "metadata": {"comment": each.comment}} for each in schema.columns]
    table = from_spark({"fields": fields})
    assert inferred_schema("VOID", table, "BIGINT").columns[2].paths == ((),)
    assert inferred_schema("OBJECT<a: BIGINT>", table).columns[2].paths == ((),)
