"""Prints tables without cutting any cell, as wide as the terminal; in a pipe, at most ``PIPE_WIDTH`` columns wide.

    fits with a frame? ──no──► fits without a frame? ──no──► print each row as a block of lines

Invariants:
    - Every character of every cell is printed. A table that is too wide gets more lines.
"""

from __future__ import annotations

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table

#: Width of a table in a pipe or a file, columns. Logs, tickets and chats show lines of this length whole.
PIPE_WIDTH = 120
#: Maximum length of words that are never broken, characters. On a narrow terminal, longer words are broken.
_WORD_MAX = 24
#: Extra characters for each cell: in a table with a frame, and in a table without a frame.
_FRAMED, _PLAIN = 3, 2


def print_table(table: Table, console: Console) -> None:
    """Print a table without cutting cells; a table that is wider than the console has more lines."""
    for column in table.columns:
        column.overflow = "fold"
    if not console.is_terminal:
        width = max(console.width, PIPE_WIDTH)
        console = Console(file=console.file, width=width, no_color=console.no_color, color_system=None)
    words = [_longest_word(column, console) for column in table.columns]
    for column, word in zip(table.columns, words, strict=True):
        column.min_width = word
    if sum(words) + _FRAMED * len(words) + 1 > console.width:
        table.box, table.pad_edge = box.SIMPLE_HEAD, False
        if sum(words) + _PLAIN * len(words) > console.width:
            _print_blocks(table, console)
            return
    console.print(table)


def _longest_word(column: Column, console: Console) -> int:
    cells: list[RenderableType] = [column.header, *column.cells]
    return min(_WORD_MAX, max(Measurement.get(console, console.options, cell).minimum for cell in cells))


def _print_blocks(table: Table, console: Console) -> None:
    """Print each row as a block with one line for each column: header and cell."""
    rows = list(zip(*(list(column.cells) for column in table.columns), strict=True))
    for row in rows:
        block = Table.grid(padding=(0, 2, 0, 0))
        block.add_column(style="bold", no_wrap=True)
        block.add_column(overflow="fold")
        for column, cell in zip(table.columns, row, strict=True):
            block.add_row(column.header, cell)
        console.print(block)
        if row is not rows[-1]:
            console.print()
