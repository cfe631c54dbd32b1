"""Syntax trees of modules, parsed once and walked once in each test process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree, as ``ast.walk`` gives them. To walk all modules takes more than a second of CPU."""
    return tuple(ast.walk(tree))
