"""Syntax trees that are asked more than one thing."""

from __future__ import annotations

import ast
from functools import lru_cache


@lru_cache(maxsize=1024)
def nodes(of: ast.AST) -> tuple[ast.AST, ...]:
    """As ast.walk, which takes most of the time of who asks again: the newest are remembered."""
    return tuple(ast.walk(of))
