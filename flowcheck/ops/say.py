"""Lines for people with names in them that others gave: none is markup, no terminal obeys any."""

from __future__ import annotations

from rich.console import Console

from flowcheck.plain import plain

__all__ = ["plain", "say"]


def say(told: str) -> None:
    """One line, as long as it is."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(plain(told), markup=False)
