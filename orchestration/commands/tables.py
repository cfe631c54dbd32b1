"""Tables of the command line, printed whole: no cell is cut, on a terminal of any width and in a pipe.

    fits ──► with a frame ──► else without one ──► else each row as a block of lines

Invariants:
    - Each character of each cell is printed. A narrow terminal gets more lines, a pipe lines as wide as the table.
"""

from __future__ import annotations

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table

#: Words longer than this are broken if the terminal is too narrow.
_WORD_MAX = 24
#: Columns of the terminal beside a cell: with a frame, and without.
_FRAMED, _PLAIN = 3, 2


def print_table(table: Table, console: Console) -> None:
    """Print a table without cutting cells, on as many lines as the console's width requires."""
    for column in table.columns:
        column.overflow = "fold"
    if not console.is_terminal:
        wide = console.options.update(max_width=1_000_000)
        width = Measurement.get(console, wide, table).maximum
        Console(file=console.file, width=max(width, console.width), no_color=console.no_color).print(table)
        return
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
    """Print each row as lines of a header and a cell."""
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
