"""The positions that queries demand, as texts and as data."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.queries.demand import Position, parse_after
from holdfast.processors.engine.queries.errors import QueryWrong
from tests.mechanics.tiers import examples

_TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=8)


def test_positions_are_parsed() -> None:
    assert parse_after([]) == parse_after([""]) == {}
    assert parse_after(["orders:0:42"]) == {Partition("orders", 0): 42}
    assert parse_after(["a:0:1,b:1:2", "a:1:3"]) == {
        Partition("a", 0): 1,
        Partition("b", 1): 2,
        Partition("a", 1): 3,
    }


def test_of_two_positions_of_a_partition_the_later_one_counts() -> None:
    assert parse_after(["a:0:9,a:0:3"]) == parse_after(["a:0:3", "a:0:9"]) == {Partition("a", 0): 9}


@pytest.mark.parametrize(
    "text",
    [
        *("orders", "orders:0", ":0:1", "orders:-1:1", "orders:0:-1", "orders:x:1", "a:0:1.5", "a:0:1:2", "a:²:1"),
        *("a:0:", "a::1", f"a:0:{'9' * 20}", f"a:{'9' * 5_000}:1"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(QueryWrong, match="expected <topic>:<partition>:<next offset>") as refused:
        parse_after([f"good:0:1,{text}"])
    assert "after=orders:0:42" in refused.value.action


@settings(max_examples=examples(300, tested=25), deadline=None)
@given(inputs=st.dictionaries(_TOPICS, st.integers(0, 2**63 - 1), min_size=1, max_size=4), number=st.integers(0, 9_999))
def test_the_position_of_an_answer_is_a_demand_of_the_next_query(inputs: dict[str, int], number: int) -> None:
    position = Position(number, inputs, 1.0, 0.123456, "owner", "0")
    shown = position.as_dict()
    assert parse_after([shown["after"]]) == {Partition(topic, number): at for topic, at in inputs.items()}
    assert (shown["inputs"], shown["age_s"]) == (inputs, 0.1235)
