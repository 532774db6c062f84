"""Escapes unprintable characters in text from outside, so that it cannot control a terminal or
forge log lines."""

from __future__ import annotations


def printable(told: str) -> str:
    """What does not print is shown by its number, as in a Python string."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in told)


def printable_lines(told: str) -> str:
    """The same of each line."""
    return "\n".join(map(printable, told.split("\n")))
