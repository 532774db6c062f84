"""Text for people wraps around a command: what stands between backticks can be pasted."""

import ast
import io
from pathlib import Path

import pytest
from rich.text import Text

from flowcheck.findings.finding import entries
from flowcheck.ops.console_output import SentenceConsole, wrapped_around_commands

OPS = Path(__file__).resolve().parents[2] / "flowcheck" / "ops"
COMMAND = "`flowcheck restore --run /var/lib/job --template last.pt --out FOLDER`"


def printed(text: str, width: int, **options: object) -> list[str]:
    out = io.StringIO()
    SentenceConsole(file=out, width=width).print(text, **options)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 40, 71, 80])
def test_a_command_stays_on_one_line(width: int) -> None:
    before, after = "A later step of the replica, which it keeps:", "writes the files of the step"
    lines = printed(f"{before} {COMMAND} {after}", width)
    assert [line for line in lines if COMMAND in line]
    assert [one for line in lines for one in line.split()] == [
        *before.split(),
        *COMMAND.split(),
        *after.split(),
    ]
    assert all(len(line) <= width for line in lines if COMMAND not in line)


def test_words_wrap_as_they_did() -> None:
    assert printed("one two three four\n  five", 9) == ["one two", "three", "four", "  five"]
    assert printed("no `pair of them", 8) == ["no `pair", "of them"]
    assert printed("-> one two three", 9, indent=3) == ["-> one", "   two", "   three"]


def test_a_path_is_not_broken() -> None:
    path = "/var/lib/flowcheck/" + "job-" * 20
    assert printed(f"the run is {path} now", 30) == ["the run is", path, "now"]


def test_style_and_markup_are_kept() -> None:
    assert printed("[bold]a b[/] c", 3) == ["a b", "c"]
    assert printed("[bold]a[/]", 30, markup=False) == ["[bold]a[/]"]
    lines = list(wrapped_around_commands(Text.from_markup("x [dim]one two[/]"), 5))
    assert [line.plain for line in lines] == ["x one", "two"]
    assert all(line.spans for line in lines)


def test_every_remedy_keeps_its_commands() -> None:
    shown = [one.remedy for one in entries().values() if "`flowcheck " in one.remedy]
    assert len(shown) > 50
    for remedy in shown:
        text = "\n".join(printed(remedy, 60, markup=False))
        assert all(one in text for one in remedy.split("`")[1::2]), remedy


def consoles_of_rich(tree: ast.Module) -> list[int]:
    """Lines where a module makes a console that breaks commands."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Console"
    ]


def test_commands_print_with_this_console() -> None:
    found = {
        str(path.relative_to(OPS)): lines
        for path in OPS.rglob("*.py")
        if path.name != "console_output.py"
        and (lines := consoles_of_rich(ast.parse(path.read_text())))
    }
    assert found == {}
    assert consoles_of_rich(ast.parse("out = Console(width=3)")) == [1]
