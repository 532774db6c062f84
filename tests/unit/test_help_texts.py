"""The help of every command: what it is for, an example that its parser takes, where to read on;
of every option a sentence that stands by itself."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperArgument, TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from flowcheck.cli import app

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS = ("Of ", "As ", "Or ", "And ", "Before that", "Instead ")
"""Beginnings that only make sense to who has just read something else."""
LINE = 110
"""Characters of an option's help: one line. Details stand on the page that the command names."""


def commands(one: Any, *words: str) -> Iterator[tuple[str, Any]]:
    yield " ".join(words), one
    if isinstance(one, TyperGroup):
        for name, inner in one.commands.items():
            yield from commands(inner, *words, name)


ALL = dict(commands(get_command(app), "flowcheck"))


def wrong_words(line: str) -> list[str]:
    """Options of a command line that its command does not have."""
    words = shlex.split(line)
    name = max((n for n in ALL if words[: len(n.split())] == n.split()), key=len)
    known = {o for p in ALL[name].params for o in (*p.opts, *p.secondary_opts)}
    own = words[: words.index("--")] if "--" in words else words
    return [word for word in own if word.startswith("--") and word not in known]


@pytest.mark.parametrize("name", ALL)
def test_a_command_shows_examples_that_parse_and_says_where_to_read_on(name: str) -> None:
    command = ALL[name]
    lines = re.findall(r"`(flowcheck [^`]+)`", " ".join((command.help or "").split()))
    examples = [line for line in lines if line.startswith(f"{name} ") or line == name]
    assert examples
    assert [wrong for line in lines for wrong in wrong_words(line)] == []
    page = re.fullmatch(r"Read on: (\S+)", command.epilog or "")
    assert page
    assert (ROOT / page[1]).is_file()


@pytest.mark.parametrize("name", ALL)
def test_an_option_says_what_it_does(name: str) -> None:
    own = [p for p in ALL[name].params if "completion" not in "".join(p.opts)]
    for parameter in own:
        told = parameter.help or ""
        what = "argument" if isinstance(parameter, TyperArgument) else "option"
        assert len(told.split()) > 2, f"{what} {parameter.name}: {told!r}"
        assert told[0].isupper(), told
        assert not told.startswith(FRAGMENTS), told
        assert told.endswith("."), told
        assert len(told) <= LINE, told


def test_an_example_with_an_unknown_option_is_found() -> None:
    assert wrong_words("flowcheck switch apply --os tc --sauce eth1 -- --own") == ["--sauce"]


@pytest.mark.parametrize("name", ALL)
def test_a_switch_has_no_type(name: str) -> None:
    """`--json <bool>` reads as if a value were to follow."""
    words = name.split()[1:]
    shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0 and "--help" in shown.output
    assert not re.search(r"bool", shown.output, re.IGNORECASE)
