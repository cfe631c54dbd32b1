"""The column steps of the bench, each as expressions and as functions.

Holdfast and Quix Streams declare them with the same calls. Therefore this module imports neither of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: The minimum speed of an expression relative to a function, as a goal of the bench.
GOAL = 2.0
#: The number of messages in one call of the loop.
SLICE = 500

Declare = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Steps:
    """The same steps as column expressions and as functions. ``goal``: the minimum speed relative to functions."""

    name: str
    columns: Declare
    functions: Declare
    #: Whether a whole task is measured (with an aggregation or a window after the steps), not only the loop.
    task: bool = False
    goal: float = 0.0


def assigned(sdf: Any, **columns: Callable[[Any], Any]) -> Any:
    """Set the columns of a stream one after the other."""
    for name, column in columns.items():
        sdf[name] = column(sdf)
    return sdf


def _set_total(value: Any) -> None:
    value["total"] = value["amount"] * 3


def large_by_columns(sdf: Any) -> Any:
    """The steps of a task in front of its state, as expressions."""
    sdf = sdf[(sdf["amount"] > 200) & sdf["currency"].isin(["EUR", "USD", "GBP"])]
    return assigned(sdf, total=lambda s: s["amount"] * 3)


def large_by_functions(sdf: Any) -> Any:
    """The same steps as functions."""
    return sdf.filter(lambda value: value["amount"] > 200 and value["currency"] in ["EUR", "USD", "GBP"]).apply(
        lambda value: {**value, "total": value["amount"] * 3}
    )


LOOP = Steps("the loop alone", lambda sdf: sdf, lambda sdf: sdf)
LOOPS: tuple[Steps, ...] = (
    Steps(
        "a column; `apply` of a new object",
        lambda sdf: assigned(sdf, total=lambda s: s["amount"] * 3),
        lambda sdf: sdf.apply(lambda value: {**value, "total": value["amount"] * 3}),
        goal=GOAL,
    ),
    Steps(
        "filter, two columns, projection; four functions",
        lambda sdf: assigned(
            sdf[sdf["amount"] > 200], total=lambda s: s["amount"] * 3, large=lambda s: s["total"] > 2_000
        )[["user_id", "total", "large"]],
        lambda sdf: (
            sdf.filter(lambda value: value["amount"] > 200)
            .apply(lambda value: {**value, "total": value["amount"] * 3})
            .apply(lambda value: {**value, "large": value["total"] > 2_000})
            .apply(lambda value: {name: value[name] for name in ("user_id", "total", "large")})
        ),
        goal=GOAL,
    ),
    Steps(
        "projection",
        lambda sdf: sdf[["user_id", "amount"]],
        lambda sdf: sdf.apply(lambda value: {"user_id": value["user_id"], "amount": value["amount"]}),
    ),
    Steps(
        "a column; `update` in place",
        lambda sdf: assigned(sdf, total=lambda s: s["amount"] * 3),
        lambda sdf: sdf.update(_set_total),
    ),
    Steps(
        "filter",
        lambda sdf: sdf[(sdf["amount"] > 500) & (sdf["currency"] == "EUR")],
        lambda sdf: sdf.filter(lambda value: value["amount"] > 500 and value["currency"] == "EUR"),
    ),
)
