"""The Typer application and its groups, with help that tells no type of an option that takes no
value: newer releases of typer show `<bool>` beside each. An unknown command is an error of
FlowCheck's, with the names that are like it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandInfo

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.general_errors import (
    LIKE_COMMANDS,
    NO_LIKE_COMMAND,
    UNKNOWN_COMMAND,
)

PROGRAM = "flowcheck"
"""What commands in messages begin with, however the program was started."""

REFUSED: type[Exception] = next(
    one for one in typer.BadParameter.__mro__ if one.__name__ == "ClickException"
)
"""Base of typer's errors: click's, or in newer releases of typer one of its own."""


class UsageError(FlowCheckError):
    """A command line that is refused before its command begins."""


def command_path(ctx: Any) -> str:
    """Full name of the command of a context: `flowcheck switch render`."""
    names: list[str] = []
    while ctx is not None and ctx.parent is not None:
        names.insert(0, ctx.info_name)
        ctx = ctx.parent
    return " ".join([PROGRAM, *names])


def _without_flag_types(params: list[Any]) -> list[Any]:
    for one in params:
        if getattr(one, "is_flag", False) and one.metavar is None:
            one.metavar = ""
    return params


@contextmanager
def _of_command(ctx: Any) -> Iterator[None]:
    """An error of the parser from within names the command; of an option without its value it
    does not."""
    try:
        yield
    except REFUSED as error:
        if getattr(error, "ctx", None) is None:
            error.ctx = ctx  # type: ignore[attr-defined]
        raise


class AppCommand(TyperCommand):
    """A command whose switches have no metavar."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _of_command(ctx):
            return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class AppGroup(TyperGroup):
    """Likewise of a group's own options; it names the commands that an unknown one is like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _of_command(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        known = self.list_commands(ctx)
        if word in known or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        path = command_path(ctx)
        near = tuple(f"{path} {name}" for name in difflib.get_close_matches(word, known))
        hint = LIKE_COMMANDS(near) if near else None
        told = UNKNOWN_COMMAND(word=word, command=path, near=near or NO_LIKE_COMMAND(), hint=hint)
        raise UsageError(told)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))


class CommandApp(typer.Typer):
    """A typer.Typer whose commands are of these classes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=AppGroup, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": AppCommand, **settings})

    @contextmanager
    def only_named(self, words: Sequence[str]) -> Iterator[None]:
        """Within it the application consists of the command, or group, that these words of a
        command line begin with: typer makes parsers of all others, a tenth of a second, in every
        process. Of all where they begin with none."""
        first = next(iter(words), "")
        commands, groups = self.registered_commands, self.registered_groups
        named = [one for one in commands if _name_of(one) == first]
        named_groups = [one for one in groups if one.name == first]
        if named or named_groups:
            self.registered_commands, self.registered_groups = named, named_groups
        try:
            yield
        finally:
            self.registered_commands, self.registered_groups = commands, groups


def _name_of(one: CommandInfo) -> str:
    """As typer names it (typer/main.py, get_command_name)."""
    function = one.callback.__name__ if one.callback is not None else ""
    return one.name or function.lower().replace("_", "-")
