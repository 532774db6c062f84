"""Every command that a text of FlowCheck shows runs as it stands: click itself reads each one, and
refuses an unknown option, a missing one, or prose behind the command."""

import ast
import re
import shlex
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from flowcheck.cli.main import app
from flowcheck.findings.catalog.how_chains_end import LEFT_WITH_REPLICA
from flowcheck.findings.failures_page import quoted
from flowcheck.findings.finding import Entry, Finding, entries
from flowcheck.findings.named_run import DEFAULT_RUN, FIELD, named_run, set_named_run
from flowcheck.stages.privilege import drop_privileges

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
    of_file = words and (words[0][0] != "-" or (name == ["audit"] and words[0] == "--watch"))
    if name in (["audit"], ["base"]) and not of_file:
        return f"{command}: no CHECKPOINT"
    return ""


def filled(text: str) -> str:
    """With values in the places of its arguments; one in a command has a blank."""
    shown = {"q": shlex.quote("a b"), "o": f" --run {shlex.quote('a b')}"}
    parts = string.Formatter().parse(text)
    return "".join(
        said + ("" if name is None else shown.get(conversion or "", "1"))
        for said, name, _, conversion in parts
    )


def run_of(command: str) -> str | None:
    """The run that a command line acts on; None: it acts on no run, or on one that it names by
    other means (a checkpoint, a URL, the run of another machine)."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(command)]
    verb = ROOT.commands[words[0]]
    if verb.name in ("serve", "plan", "verify") or not any(
        one.name == "run" for one in verb.params
    ):
        return None
    if {"--checkpoint", "--from", "--leftovers", "--help", "DIR"} & set(words):
        return None
    return str(verb.make_context(verb.name, words[1:]).params["run"])


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
        assert fields - {FIELD} <= set(entry.names), entry.code


def commands_of(entry: Entry, root: str) -> list[str]:
    """As printed by a process that works on the run in `root`."""
    set_named_run(Path(root))
    values = {name: root if name == "run" else 1 for name in entry.names}
    texts = [entry.sentence_of(values) or "", entry.remedy_of(values)]
    spans = [span for text in texts for span in text.split("`")[1::2]]
    return [found[1] for span in spans if (found := SPAN.fullmatch(span))]


def test_a_command_about_a_run_names_that_run() -> None:
    """Pasted without `--run` it would act on the default run: `flowcheck down` on the wrong one."""
    wrong, seen = {}, 0
    for code, entry in entries().items():
        acts_on = [run for one in commands_of(entry, "/a b/run") if (run := run_of(one))]
        seen += len(acts_on)
        if set(acts_on) - {"/a b/run"}:
            wrong[code] = commands_of(entry, "/a b/run")
    assert wrong == {}
    assert seen > 90


def test_the_default_run_is_not_named() -> None:
    for entry in entries().values():
        for command in commands_of(entry, DEFAULT_RUN):
            needed = command.startswith("replay ")  # in a folder of its own without it
            assert needed or DEFAULT_RUN not in command, entry.code


def test_a_command_about_a_run_stands_between_backticks() -> None:
    """In prose nobody sees where it ends, and its run would not be named."""
    bare = re.compile(r"flowcheck (status|down|up|base|audit|top|watch)\b")
    texts = [(one.code, text) for one in entries().values() for text in (one.sentence, one.remedy)]
    assert [
        code for code, text in texts for span in text.split("`")[::2] if bare.search(span)
    ] == []


def test_a_command_that_does_not_name_its_run_is_found() -> None:
    assert run_of("status") == run_of("base FILE --then LATER") == DEFAULT_RUN
    assert run_of("up JOB.toml") == run_of("down") == "None"
    assert run_of("audit FILE --run '/a b'") == "/a b"
    assert run_of("restore --checkpoint F --template F --out F") is None
    assert run_of("status --leftovers") is run_of("down --leftovers") is None


def test_what_was_written_before_commands_named_their_run_is_read() -> None:
    old = (
        b'{"code":"base.of_which_job_open","arguments":{"file":"f","reasons":[]},"sentence":"old"}'
    )
    assert str(msgspec.json.decode(old, type=Finding)) == "old"
    gone = b'{"code":"health.supervisor_gone","sentence":"as it was","remedy":"`flowcheck down`"}'
    set_named_run(Path("/a b"))
    assert "`flowcheck down --run '/a b'`" in msgspec.json.decode(gone, type=Finding).remedy


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
                    one.value if isinstance(one, ast.Constant) else field(one)
                    for one in node.values
                ]
                yield f"{path.name}:{node.lineno}", "".join(map(str, shown))


def field(value: ast.AST) -> str:
    """As the catalogue has it: of an option that names a run, or of another word."""
    names = {one.id for one in ast.walk(value) if isinstance(one, ast.Name)}
    return "{x!o}" if names & {"run_option", "of_run"} else "{x!q}"


def test_commands_that_code_prints_run_as_printed() -> None:
    texts = [(place, text) for place, text in texts_of_code() if "flowcheck " in text]
    wrong = {}
    for place, text in texts:
        whole = text.startswith("flowcheck ") and not refusal(filled(text)[len("flowcheck ") :])
        if not whole and (found := problems(text, remedy=False)):
            wrong[place] = found
    assert wrong == {}
    assert len(texts) > 40


def test_commands_about_a_run_that_code_prints_name_it() -> None:
    wrong, seen = [], 0
    for place, text in texts_of_code():
        if place.startswith(("main.py", "shared_options.py")):
            continue  # help: of any run
        whole = [text] if text.startswith("flowcheck ") else text.split("`")[1::2]
        spans = [found[1] for one in whole if (found := SPAN.fullmatch(filled(one)))]
        for command in spans:
            if refusal(command):
                continue  # a verb's name, or another's sentence
            run = run_of(command)
            seen += run == "a b"
            if run not in (None, "a b") and " " in command.strip():
                wrong.append(f"{place}: {command}")
    assert wrong == []
    assert seen > 8


def commands_with_a_run() -> list[str]:
    return sorted(
        name
        for name, one in ROOT.commands.items()
        if any("--run" in getattr(param, "opts", ()) for param in one.params)
    )


@pytest.mark.parametrize("verb", [one for one in commands_with_a_run() if one != "replay"])
def test_each_command_names_its_run_in_what_it_says(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, since nothing is there; the run is known by then."""
    monkeypatch.setattr(drop_privileges, "_nothing_to_do", lambda: True)
    file, run = tmp_path / "f", tmp_path / "no run"
    more = {
        "audit": [file],
        "base": [file],
        "restore": ["--template", file, "--out", tmp_path / "o"],
        "stage": ["extract"],
        "up": [file],
        "verify": [file],
    }
    words = [verb, *map(str, more.get(verb, [])), "--run", str(run)]
    if verb == "watch":
        words += ["--listen", "no address"]
    if verb == "serve":
        words += ["--host", "no address"]
    set_named_run(Path("/another"))
    assert CliRunner().invoke(app, words).exit_code
    assert named_run() == str(run)


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
