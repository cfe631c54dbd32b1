"""Draws bar charts as SVG: titled blocks of rows with a label, a bar and a note. The SVG uses no other file."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

INK, MUTED, BLUE, GREEN, PALE, GREY, RED = "#1f2933", "#7b8794", "#2f80ed", "#27ae60", "#d9e2ec", "#9aa5b1", "#eb5757"
#: Maximum number of rows that are drawn for one block (a titled group of bars).
ROWS_MAX = 32
_WIDTH, _LEFT, _BAR, _GAP = 720, 150, 14, 6


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar chart; the bar with the greatest ``value`` of a block has full length.

    ``note`` is the text after the bar.
    """

    label: str
    value: float
    note: str
    colour: str = BLUE


def bars(rows: Sequence[Bar]) -> list[str]:
    """Draws the rows of a block (a titled group of bars), in order.

    If there are more than ``ROWS_MAX`` rows, only the rows with the longest bars are drawn. A last row then states the
    number of the other rows.
    """
    kept = sorted(sorted(range(len(rows)), key=lambda number: -rows[number].value)[:ROWS_MAX])
    most = max((row.value for row in rows), default=0.0) or 1.0
    drawn = []
    for row in (rows[number] for number in kept):
        width = scaled(row.value, most)
        drawn.append(label(row.label) + box(0, width, row.colour) + note(width, row.note))
    left = len(rows) - len(kept)
    return [*drawn, note(0, f"and {left} that are shorter")] if left else drawn


def svg(blocks: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Draws blocks as an SVG document; each block is a title and its rows."""
    parts, y = [], 8
    for title, rows in blocks:
        parts.append(text(8, y + 14, title, weight="600"))
        y += 24
        for row in rows:
            parts.append(f'<g transform="translate(0,{y})">{row}</g>')
            y += _BAR + _GAP
        y += 14
    return document(_WIDTH, y, parts)


def document(width: int, height: int, parts: Iterable[str]) -> str:
    """An SVG document of this size in pixels, with a white background."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="11"><rect width="{width}" height="{height}" fill="white"/>'
        f"{''.join(parts)}</svg>"
    )


def markdown(drawn: str, title: str) -> str:
    """Converts an SVG document to a Markdown image; ``title`` is its alternative text."""
    return f"![{title}](data:image/svg+xml;base64,{base64.b64encode(drawn.encode()).decode()})"


def scaled(value: float, most: float) -> int:
    """The length of the bar for ``value`` in pixels; ``most`` is the value for which a bar has full length."""
    return round((_WIDTH - _LEFT - 230) * max(0.0, value) / max(most, 1e-9))


def box(first: int, last: int, colour: str, opacity: str = "1") -> str:
    """A rectangle from pixel ``first`` to pixel ``last`` of a bar, as SVG; empty if it has no width."""
    width = max(0, last - first)
    return (
        f'<rect x="{_LEFT + first}" y="0" width="{width}" height="{_BAR}" fill="{colour}" fill-opacity="{opacity}"/>'
        if width
        else ""
    )


def label(words: str) -> str:
    """The text before a bar, as SVG; it is shortened to 24 characters."""
    return text(_LEFT - 8, 11, words if len(words) <= 24 else f"{words[:23]}…", anchor="end", colour=MUTED)


def note(after: int, words: str) -> str:
    """The text after a bar, as SVG; ``after`` is the bar's length in pixels."""
    return text(_LEFT + after + 6, 11, words)


def text(x: int, y: int, words: str, *, anchor: str = "start", colour: str = INK, weight: str = "400") -> str:
    """An SVG text element; special characters are escaped."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}" font-weight="{weight}">{escape(words)}</text>'
