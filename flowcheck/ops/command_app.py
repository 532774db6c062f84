"""The Typer application and its groups, with help that tells no type of an option that takes no
value: newer releases of typer show `<bool>` beside each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def _without_flag_types(params: list[Any]) -> list[Any]:
    for one in params:
        if getattr(one, "is_flag", False) and one.metavar is None:
            one.metavar = ""
    return params


class AppCommand(TyperCommand):
    """A command whose switches have no metavar."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class AppGroup(TyperGroup):
    """Likewise of a group's own options."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class CommandApp(typer.Typer):
    """A typer.Typer whose commands are of these classes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=AppGroup, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": AppCommand, **settings})
