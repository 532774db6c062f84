"""Every command that a text of FlowCheck shows runs as it stands: click itself reads each one, and
refuses an unknown option, a missing one, or prose behind the command."""

import ast
import re
import shlex
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from flowcheck.cli.main import app
from flowcheck.findings.catalog.how_chains_end import LEFT_WITH_REPLICA
from flowcheck.findings.failures_page import quoted
from flowcheck.findings.finding import Entry, entries

PACKAGE = Path(__file__).resolve().parents[2] / "flowcheck"
SPAN = re.compile(r"(?:.* )?\bflowcheck (.+)", re.DOTALL)
"""A command between backticks, where nothing but another program stands before it."""
BARE = re.compile(r"\bflowcheck ((?:switch|lab) [a-z]+|[a-z]+) (--[a-z]|[A-Z]{2}|\{)")
"""A command with an option or an argument."""
ROOT: Any = get_command(app)
PLACEHOLDERS = {"N": "1", "OS": "eos", "PORT": "eth1"}
FORM = {"--template", "--format"}


def refusal(command: str, *, complete: bool = True) -> str:
    """What click says against a command line; "": it is one. complete: also of what it lacks."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        return f"{command}: {error}"
    words = [PLACEHOLDERS.get(word, word) for word in words]
    if ">" in words:
        words = words[: words.index(">")]
    found = ROOT
    name = []
    while words and words[0] in getattr(found, "commands", {}):
        name.append(words[0])
        found = found.commands[words.pop(0)]
    if name == ["lab"] and not (words or complete):
        return ""
    if not name or getattr(found, "commands", None):
        return f"{command}: no such command"
    if words == ["--help"] or not (complete or words):
        return ""
    try:
        found.make_context(" ".join(name), list(words))
    except Exception as error:
        return f"{command}: {type(error).__name__} {error}"
    if name == ["restore"] and not FORM & set(words):
        return f"{command}: neither --template nor --format"
    if name in (["audit"], ["base"]) and not (words and words[0][0] != "-"):
        return f"{command}: no CHECKPOINT"
    return ""


def filled(text: str) -> str:
    """With values in the places of its arguments; one in a command has a blank."""
    parts = string.Formatter().parse(text)
    return "".join(
        said + ("" if name is None else shlex.quote("a b") if conversion == "q" else "1")
        for said, name, _, conversion in parts
    )


def problems(text: str, *, remedy: bool) -> list[str]:
    """remedy: it says what to run; elsewhere a command without arguments may be only a name."""
    spans = [found[1] for one in filled(text).split("`")[1::2] if (found := SPAN.fullmatch(one))]
    wrong = [why for command in spans if (why := refusal(command, complete=remedy))]
    return wrong + [found[0] for one in text.split("`")[::2] for found in BARE.finditer(one)]


@pytest.mark.parametrize("part", ["remedy", "sentence", "cause"])
def test_commands_of_the_catalogue_run_as_printed(part: str) -> None:
    wrong = {
        code: found
        for code, entry in entries().items()
        if (found := problems(getattr(entry, part), remedy=part == "remedy"))
    }
    assert wrong == {}


def test_arguments_of_a_command_are_quoted() -> None:
    """`--run {run}` of a folder with a blank would be two words."""
    plain = re.compile(r"\bflowcheck .*\{\w+\}")
    texts = [text for one in entries().values() for text in (one.sentence, one.remedy)]
    assert [span for text in texts for span in text.split("`")[1::2] if plain.search(span)] == []


def test_a_remedy_shows_only_arguments_of_its_sentence() -> None:
    for entry in entries().values():
        fields = {name for _, name, _, _ in string.Formatter().parse(entry.remedy) if name}
        assert fields <= set(entry.names), entry.code


def texts_of_code() -> Iterator[tuple[str, str]]:
    """(place, text) of every string that is no docstring, f-strings with their fields as
    `{x!q}` or `{x}`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "catalog" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        within, docstrings = set[int](), set[int]()
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                within |= {id(one) for one in ast.walk(node) if one is not node}
            if isinstance(node, ast.Expr):
                docstrings.add(id(node.value))
        for node in ast.walk(tree):
            if id(node) in within | docstrings:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.name}:{node.lineno}", node.value.replace("{", "").replace("}", "")
            elif isinstance(node, ast.JoinedStr):
                shown = [
                    one.value if isinstance(one, ast.Constant) else "{x!q}" for one in node.values
                ]
                yield f"{path.name}:{node.lineno}", "".join(map(str, shown))


def test_commands_that_code_prints_run_as_printed() -> None:
    texts = [(place, text) for place, text in texts_of_code() if "flowcheck " in text]
    wrong = {}
    for place, text in texts:
        whole = text.startswith("flowcheck ") and not refusal(filled(text)[len("flowcheck ") :])
        if not whole and (found := problems(text, remedy=False)):
            wrong[place] = found
    assert wrong == {}
    assert len(texts) > 40


def test_a_command_that_would_be_refused_is_found() -> None:
    assert problems("do `flowcheck restore --checkpoint F`", remedy=True)
    assert problems("do `flowcheck restore --checkpoint F --out F`", remedy=True)
    assert problems("do `flowcheck restore`", remedy=True)
    assert not problems("what `flowcheck restore` wrote", remedy=False)
    assert not problems("`flowcheck restore --template F --out F` does it", remedy=True)
    assert problems("`flowcheck audit FILE --then LATER`", remedy=True)
    assert problems("`flowcheck audit --run {run!q}`", remedy=True)
    assert problems("flowcheck down --run {run} removes it", remedy=False)
    assert problems("`flowcheck down --run {run} removes it`", remedy=False)
    assert problems("`flowcheck up ...`; `flowcheck plan`; `flowcheck bless`", remedy=True)


def test_a_remedy_tells_the_folder_it_is_about() -> None:
    """In a shell's words; the page, which knows none, has an ellipsis."""
    remedy = LEFT_WITH_REPLICA(run="/a b", mib=1).remedy
    (words,) = [shlex.split(one) for one in re.findall(r"`(flowcheck restore[^`]*)`", remedy)]
    assert words[words.index("--run") + 1] == "/a b"
    assert "\u2026" in quoted(Entry("test.run_shown", "in {run!q}"))
