"""Text that others gave, for a terminal or a log: no terminal obeys any of it."""

from __future__ import annotations


def plain(told: str) -> str:
    """What does not print is shown by its number, as in a Python string."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in told)


def plain_lines(told: str) -> str:
    """The same of each line."""
    return "\n".join(map(plain, told.split("\n")))
