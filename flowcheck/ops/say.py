"""Lines for people with names in them that others gave: none is markup, no terminal obeys any."""

from __future__ import annotations

from rich.console import Console


def say(told: str) -> None:
    """One line, as long as it is."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(plain(told), markup=False)


def plain(told: str) -> str:
    """What does not print is shown by its number, as in a Python string."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in told)
