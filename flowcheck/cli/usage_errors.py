"""What typer refuses on a command line, as an error of FlowCheck's."""

from __future__ import annotations

import sys
from typing import Any

import typer

from flowcheck.findings.catalog.general_errors import (
    MISSING_PARAMETER,
    NOT_A_NUMBER,
    NOT_A_WHOLE_NUMBER,
    UNKNOWN_OPTION,
    USAGE_REFUSED,
    WRONG_PARAMETER,
    WRONG_VALUE,
)
from flowcheck.findings.catalog.refused_settings import AT_LEAST
from flowcheck.findings.finding import Finding
from flowcheck.ops.command_app import REFUSED, CommandApp, UsageError, command_path
from flowcheck.ops.command_errors import OPERATOR_ERROR

VALUE_SHOWN = 200
"""Characters of a wrong value that are shown."""


def run_app(app: CommandApp) -> None:
    """Runs the command of sys.argv and leaves with its exit code. Raises UsageError where typer
    would print a text of its own."""
    try:
        with app.only_named(sys.argv[1:]):
            code = app(standalone_mode=False)
    except REFUSED as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed
            sys.exit(OPERATOR_ERROR)
        raise UsageError(_finding_of(error)) from error
    except typer.Abort:
        code = 1  # as typer leaves
    sys.exit(code if isinstance(code, int) else 0)


def _finding_of(error: Any) -> Finding:
    """Of an error of typer's: its class tells the kind, whichever library it is of."""
    text = error.format_message()
    where = {"command": command_path(getattr(error, "ctx", None))}
    match type(error).__name__:
        case "NoSuchOption":
            return UNKNOWN_OPTION(text=text, option=error.option_name, **where)
        case "MissingParameter":
            parameter, metavar = _parameter(error), _metavar(error)
            usage = f"{parameter} {metavar}" if parameter.startswith("--") else metavar
            return MISSING_PARAMETER(usage=usage, parameter=parameter, metavar=metavar, **where)
        case "BadParameter":
            why = _wrong_value(error) or text
            return WRONG_PARAMETER(why=why, parameter=_parameter(error), **where)
    return USAGE_REFUSED(text=text, **where)


def _wrong_value(error: Any) -> Finding | None:
    """What is wrong with the value of an option or argument, if typer validated it (with pydantic,
    whose error has the value and a code); None: a parser of typer's own refused it in words."""
    listed = getattr(error.__cause__, "errors", None)
    first = next(iter(listed()), None) if callable(listed) else None
    if not isinstance(first, dict) or not {"type", "input", "msg"} <= set(first):
        return None
    value, right = repr(first["input"])[:VALUE_SHOWN], first["msg"]
    match first["type"], first.get("ctx"):
        case "float_parsing" | "float_type", _:
            right = NOT_A_NUMBER()
        case "int_parsing" | "int_type" | "int_from_float", _:
            right = NOT_A_WHOLE_NUMBER()
        case "greater_than_equal", {"ge": least}:
            right = AT_LEAST(least)
    return WRONG_VALUE(parameter=_parameter(error), value=value, right=right)


def _metavar(error: Any) -> str:
    """What stands for its value in the help: `FILE...`, or its name where the help has its type."""
    stated = getattr(error.param, "metavar", None)
    return str(stated) if stated else _parameter(error).lstrip("-").upper()


def _parameter(error: Any) -> str:
    """As the command line has it: `--speed`, or an argument's name."""
    if error.param is None:
        return error.param_hint if isinstance(error.param_hint, str) else ""
    options = [one for one in error.param.opts if one.startswith("--")]
    return str(options[0] if options else error.param.name)
