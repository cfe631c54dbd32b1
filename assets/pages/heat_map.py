"""Draws the heat map of an audit, which compares a store, its changelog and its warehouse table.

Each comparison of a partition's copies is one row. Each bucket of keys (a group of keys by hash) is one cell.
"""

from collections.abc import Sequence

from holdfast.assets.pages.drawing import document, markdown
from holdfast.processors.audits.comparison import Moment
from holdfast.processors.engine.state.buckets import BUCKETS

# tidy: allow-crumb because this module is pure and draws a separate picture

#: Maximum number of rows; if there are more, only the rows with the most differences are drawn.
ROWS_MAX = 64
_CELL, _ROW, _LEFT, _TOP = 3, 14, 150, 18
_EQUAL, _DIFFERS, _EMPTY = "#2e9f5b", "#d93025", "#dfe3e8"


def heat_map(moments: Sequence[Moment]) -> str:
    """A Markdown image of the heat map. A cell (group of keys by hash) is green if all copies are equal, else red."""
    shown = list(moments)
    if len(shown) > ROWS_MAX:
        shown = sorted(shown, key=lambda moment: -moment.differing)[:ROWS_MAX]
    cells = sum(len(moment.by_bucket) for moment in moments)
    left = f" Of {len(moments)} rows, {len(shown)} are shown." if len(shown) < len(moments) else ""
    text = f"{cells:,} of {len(moments) * BUCKETS:,} buckets have keys that differ." if cells else "All buckets equal."
    return f"{markdown(svg(shown), 'partitions by buckets')}\n\n{text}{left}"


def svg(moments: Sequence[Moment]) -> str:
    """The heat map as SVG."""
    width, height = _LEFT + BUCKETS * _CELL + 10, _TOP + len(moments) * _ROW + 6
    drawn = [_text(_LEFT + number * _CELL, _TOP - 5, f"{number}") for number in range(0, BUCKETS, 32)]
    for row, moment in enumerate(moments):
        drawn += _row(moment, _TOP + row * _ROW)
    return document(width, height, drawn)


def _row(moment: Moment, top: int) -> list[str]:
    sides = "/".join(side.value[0] for side in moment.prints)
    empty = not any(whole.count for whole in moment.wholes.values())
    cells = [_rect(_LEFT, top, BUCKETS * _CELL, _EMPTY if empty else _EQUAL)]
    cells += [
        _rect(_LEFT + bucket * _CELL, top, _CELL, _DIFFERS, f"bucket {bucket}: {keys} keys")
        for bucket, keys in moment.by_bucket.items()
    ]
    return [_text(2, top + 9, f"{moment.partition} @ {moment.place.offset} {sides}"), *cells]


def _rect(left: int, top: int, width: int, colour: str, title: str = "") -> str:
    inside = f"><title>{title}</title></rect>" if title else "/>"
    return f'<rect x="{left}" y="{top}" width="{width}" height="{_ROW - 3}" fill="{colour}"{inside}'


def _text(left: int, top: int, text: str) -> str:
    return f'<text x="{left}" y="{top}" fill="#333333">{text}</text>'
