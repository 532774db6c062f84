"""Whoever is refused something, or loses a step, is told what to do: beside the sentence, in
`remedy`, which JSON has as a key of its own.

The rule stands in flowcheck/findings/finding.py; here it is held over the code that raises errors
and gives reasons."""

import ast
import re
import typing
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec
import pytest
from support.syntax import nodes
from typer.main import get_command

from flowcheck.cli.main import app
from flowcheck.config import JobConfig
from flowcheck.findings.catalog.chain_health import NO_FRAME_YET
from flowcheck.findings.catalog.chain_processes import (
    KILLED,
    LOG_EMPTY,
    NO_LINK_YET,
    STAGE_KEEPS_DYING,
    STAGE_SAYS,
)
from flowcheck.findings.catalog.megatron_checkpoints import NEEDS_LIKE
from flowcheck.findings.catalog.privileges import RAN_AS_ROOT
from flowcheck.findings.catalog.switch_changes import PROGRAM_FAILED
from flowcheck.findings.finding import Entry, Finding, entries
from flowcheck.fleet.fleet_file import FleetConfig
from tests.unit.test_findings_calls import ROOM, catalogue
from tests.unit.test_findings_raised import errors_of

pytestmark = pytest.mark.xdist_group("remedies")
"""The package is read once, and by no worker that has none of these tests."""
PACKAGE = Path(__file__).resolve().parents[2] / "flowcheck"
LOSSES = {"StepLost", "StepShort", "Fault", "SaveFailed"}
"""Messages that tell why something is not had."""
REASON_KEYWORDS = {"why_not"}
DEEP = 3
"""Assignments and functions of the module through which a fact is followed to its entry."""
REASON_FUNCTIONS = re.compile(
    r".*(file_error_finding|refusal|refusal_of|refusal_reason|why_not|problem)\Z"
)
"""What they return is told to the operator as the reason."""
WRAPS = {"why", "reason", "reasons", "right", "fault", "fact", "failure", "needed"}
"""Arguments that hold the finding which says what is wrong: that one has the remedy."""
ADVISES = re.compile(
    r"(?:[:;.(] |\bthen )`?(?:add|apply|ask|build|call|capture(?! files)|cd|check|choose|"
    r"chmod|chown|configure|convert|correct|create|cut|delete|disable|do not|end it|fix|free|"
    r"give|have its|increase|install|leave|look|lower|make|mirror|mount|move|name|open|pass|"
    r"pick|pip install|put|raise|read|remove|rename|replace|reserve|restore|run|save|see|set|"
    r"shorten|start|state(?! of)|stop|take|train|try|turn|unpack|update|upgrade|use|wait|"
    r"write)\b(?! [a-z ]*\bis\b)|, or (?:give|leave|lower|name|stop|use)\b"
)
"""What to do, in a sentence: its place is the remedy. Word by word, as sentences have them."""

Known = dict[str, dict[str, Entry]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Reader:
    """One module: which entries it raises, or gives as a reason."""

    def __init__(
        self,
        tree: ast.Module,
        known: Known,
        errors: set[str],
        raisers: set[str] = frozenset(),  # type: ignore[assignment]
        givers: set[str] = frozenset(),  # type: ignore[assignment]
    ) -> None:
        """raisers, givers: names of functions that other modules have (`raisers_of`,
        `givers_of`); private ones are of their own module."""
        self._tree = tree
        self._errors = errors | raisers | raisers_of(tree, errors)
        self._givers = givers | givers_of(tree, self._errors)
        self._names, self._modules = dict[str, Entry](), dict[str, dict[str, Entry]]()
        for node in nodes(tree):
            for name in node.names if isinstance(node, ast.ImportFrom) else ():
                own = name.asname or name.name
                if (entry := known.get(node.module or "", {}).get(name.name)) is not None:
                    self._names[own] = entry
                if node.module == ROOM and f"{ROOM}.{name.name}" in known:
                    self._modules[own] = known[f"{ROOM}.{name.name}"]
        self._functions = {n.name: n for n in nodes(tree) if isinstance(n, Function)}
        self._assigned = dict[ast.AST, dict[str, list[ast.expr]]]()

    def told(self) -> Iterator[tuple[int, Entry]]:
        """(line, entry)."""
        for scope in (self._tree, *self._functions.values()):
            for node in nodes(scope):
                for fact in self._facts(node):
                    for entry in self._outermost(fact, scope, deep=DEEP):
                        yield node.lineno, entry
        for name, function in self._functions.items():
            if REASON_FUNCTIONS.match(name) or (name in self._givers and _gives_finding(function)):
                for entry in self._returned(function, deep=DEEP):
                    yield function.lineno, entry

    def _facts(self, node: ast.AST) -> Iterator[ast.expr]:
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                if name in self._errors or name in LOSSES:
                    yield from (*node.args, *(one.value for one in node.keywords))
                yield from (one.value for one in node.keywords if one.arg in REASON_KEYWORDS)
            case ast.Return(value=ast.Tuple(elts=[ast.Constant(value=None), *rest])):
                yield from rest

    def _entry(self, node: ast.AST) -> Entry | None:
        match node:
            case ast.Name(id=name):
                return self._names.get(name)
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                return self._modules.get(module, {}).get(name)
        return None

    def _outermost(self, node: ast.AST, scope: ast.AST, *, deep: int) -> Iterator[Entry]:
        """The entries that an expression makes: what one is only told about is left out."""
        if (entry := self._entry(node)) is not None:
            yield entry
        elif isinstance(node, ast.Call) and (entry := self._entry(node.func)) is not None:
            yield entry
            if set(entry.names) & WRAPS:
                for one in (*node.args, *(k.value for k in node.keywords if k.arg in WRAPS)):
                    yield from self._outermost(one, scope, deep=deep)
        elif isinstance(node, ast.Name) and deep:
            for value in (*self._set(scope, node.id), *self._set(self._tree, node.id)):
                yield from self._outermost(value, scope, deep=deep - 1)
        elif isinstance(node, ast.Call) and deep and _name(node.func) in self._functions:
            yield from self._returned(self._functions[_name(node.func)], deep=deep - 1)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.IfExp):
            yield from self._outermost(node.func, scope, deep=deep)
        elif isinstance(node, ast.Call) and isinstance(table := _called_on(node), ast.Dict):
            yield from self._outermost(table, scope, deep=deep)
        elif isinstance(node, ast.IfExp):
            for one in (node.body, node.orelse):
                yield from self._outermost(one, scope, deep=deep)
        elif not isinstance(node, ast.Call | ast.Lambda):
            for one in ast.iter_child_nodes(node):
                yield from self._outermost(one, scope, deep=deep)

    def _set(self, scope: ast.AST, name: str) -> Sequence[ast.expr]:
        """What a name is set to; a scope is read once."""
        if scope not in self._assigned:
            self._assigned[scope] = _assignments(scope)
        return self._assigned[scope].get(name, ())

    def _returned(self, function: Function, *, deep: int) -> Iterator[Entry]:
        for node in nodes(function):
            if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
                yield from self._outermost(node.value, function, deep=deep)


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _called_on(node: ast.Call) -> ast.expr | None:
    """Of `{...}.get(x)` the table."""
    return node.func.value if isinstance(node.func, ast.Attribute) else None


def _assignments(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """{name: what it is set to, in order}"""
    found = defaultdict[str, list[ast.expr]](list)
    for node in nodes(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name].append(value)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                found[name].append(value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                for name in {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}:
                    found[name].append(value)
    return found


def raisers_of(tree: ast.Module, errors: set[str]) -> set[str]:
    """Functions that raise, or make, an error with a finding which they are given."""
    return {
        function.name
        for function in nodes(tree)
        if isinstance(function, Function)
        for node in nodes(function)
        if isinstance(node, ast.Call) and _name(node.func) in errors
        for one in (*node.args, *(keyword.value for keyword in node.keywords))
        if _name(one.func if isinstance(one, ast.Call) else one) in _findings_given(function)
    }


@cache
def _findings_given(function: Function) -> set[str]:
    """Its parameters that are findings, or entries to make them of."""
    own = (*function.args.args, *function.args.kwonlyargs)
    kinds = {one.arg: one.annotation for one in own if one.annotation is not None}
    return {name for name, kind in kinds.items() if re.search("Finding|Entry", ast.unparse(kind))}


def givers_of(tree: ast.Module, errors: set[str]) -> set[str]:
    """Functions whose result is put into an error."""
    return {
        _name(inner.func)
        for node in nodes(tree)
        if isinstance(node, ast.Call) and _name(node.func) in errors
        for one in (*node.args, *(keyword.value for keyword in node.keywords))
        for inner in ast.walk(one)
        if isinstance(inner, ast.Call)
    }


def _gives_finding(function: Function) -> bool:
    return function.returns is not None and "Finding" in ast.unparse(function.returns)


@cache
def told_to_operators() -> dict[str, list[str]]:
    """{code: the places that raise it, or give it as a reason}"""
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    errors, known, found = set(errors_of(list(trees.values()))), catalogue(), defaultdict(list)
    raisers, givers = set[str](), set[str]()
    for tree in trees.values():
        raisers |= raisers_of(tree, errors)
        givers |= givers_of(tree, errors)
    shared = [{name for name in one if name[:1] != "_"} for one in (raisers, givers)]
    for path, tree in trees.items():
        for line, entry in Reader(tree, known, errors, *shared).told():
            found[entry.code].append(f"{path.relative_to(PACKAGE)}:{line}")
    nodes.cache_clear()
    _findings_given.cache_clear()
    return found


WITHOUT_ADVICE = {"error.text": "another program's words: nothing is known of them but the text"}
"""{code: why nothing can be advised}"""
PARTS = {
    "tc_mirror.filter_of_others": "who made the filter of a sentence that has a remedy",
    "tc_mirror.filter_of_session": "likewise",
    "process.log_empty_disk_full": "the log of a stage, in sentences that have a remedy",
    "process.log_empty": "likewise",
    "process.log_ends": "likewise",
}
"""{code: in which sentence}. No error is made of one alone."""
WRAPPERS = {"process.stage_says": "what a stage says is a finding of its own"}
"""{code: why} of those whose argument, the finding that has the remedy, has another name."""
SHOWN = [one for one in entries().values() if one.remedy and not one.code.startswith("test.")]


def lacks_remedy(entry: Entry) -> bool:
    wraps = set(entry.names) & WRAPS or entry.code in WRAPPERS
    return not (entry.remedy or wraps or entry.code in PARTS)


def test_what_is_refused_or_lost_has_a_remedy() -> None:
    known = entries()
    lacking = {
        code: places[0] for code, places in told_to_operators().items() if lacks_remedy(known[code])
    }
    assert lacking.keys() == WITHOUT_ADVICE.keys(), "give these a remedy= in the catalogue"
    assert told_to_operators().keys() >= PARTS.keys()
    assert len(told_to_operators()) > 900


@pytest.mark.parametrize(
    "found",
    [
        NEEDS_LIKE(),
        PROGRAM_FAILED(program="ovs-vsctl", code=1, said="database connection failed"),
        NO_FRAME_YET(),
        RAN_AS_ROOT("the disk"),
        STAGE_KEEPS_DYING(
            stage="extract", deaths=9, seconds=60, ended=KILLED(9), log=LOG_EMPTY("x")
        ),
    ],
    ids=lambda found: found.code,
)
def test_what_an_operator_meets_has_its_advice_in_the_remedy_alone(found: Finding) -> None:
    assert found.remedy and not ADVISES.search(found.sentence)
    assert "Mend that" not in found.sentence and "check that" not in found.sentence
    assert "--template" not in found.sentence


def test_what_a_stage_says_keeps_its_own_remedy_and_cause() -> None:
    inner = NO_LINK_YET("port 3")
    told = STAGE_SAYS(stage="capture-1", what=inner)
    assert (told.remedy, told.cause) == (inner.remedy, inner.cause)
    assert msgspec.json.decode(msgspec.json.encode(told))["remedy"] == inner.remedy != ""


ARE_ADVICE = {
    "doctor": "what `flowcheck doctor` advises beside a check is a finding of its own",
    "serve": "what an HTTP client is answered, in one line",
    "watch": "likewise",
    "live": "progress of `flowcheck up`: when to start the trainers",
    "setting": "where in a file a key was read: parts of refusals that have a remedy",
}
"""{first word of a code: why such a sentence may say what to do}. What is refused may not."""
NO_ADVICE = {
    "transport.ll128_linear_by_content": "start-up messages make sense",
    "memory.dpdk_without_huge_pages": "correct but slower",
    "job.start_up_parameters": "elements: start-up",
}
"""{code: what looks like advice in its sentence}"""


def test_sentences_leave_the_advice_to_the_remedy() -> None:
    advising = {c: one.sentence for c, one in entries().items() if ADVISES.search(one.sentence)}
    found = {
        c for c in advising if c in told_to_operators() or c.partition(".")[0] not in ARE_ADVICE
    }
    assert found == NO_ADVICE.keys(), "move what to do to remedy="
    assert all(text in advising[c] for c, text in NO_ADVICE.items())


def test_no_remedy_stands_in_its_sentence_as_well() -> None:
    def commands_of(text: str) -> set[str]:
        return {one for one in text.split("`")[1::2] if one.startswith("flowcheck ")}

    twice = {
        code
        for code, one in entries().items()
        if commands_of(one.sentence) & commands_of(one.remedy)
    }
    assert {code for code in twice if not code.startswith("leftovers.")} == set()
    assert commands_of("a `flowcheck down` b `x`") == {"flowcheck down"}


def test_an_entry_without_remedy_is_found() -> None:
    assert lacks_remedy(Entry("test.no_remedy", "{path}: is empty"))
    assert not lacks_remedy(Entry("test.a_remedy", "{path}: is empty", remedy="Fill it."))
    assert not lacks_remedy(Entry("test.a_wrapper", "{path}: {why}"))
    assert ADVISES.search("{path}: is empty: capture again")
    assert ADVISES.search("cannot listen there ({error}); state another port")
    assert not ADVISES.search("is empty: its program was ended")


def test_raised_and_told_entries_are_found() -> None:
    own = {name: Entry(f"test.told_{name.lower()}", f"{name} {{n}}") for name in "ABCDEFG"}
    known = {f"{ROOM}.one": own | {"W": Entry("test.told_w", "{file}: {why}")}}
    source = f"""
from {ROOM}.one import A, B, C, D, E, W
from {ROOM} import one as facts
def refuse(x):
    if x:
        raise StateError(A(B()))
    why = C() if x else facts.F()
    raise StateError(W(file=x, why=why))
def size_problem(x):
    return D(x)
def told(x):
    links.send(StepLost(step=1, why=_reason(x)))
    note(facts.G())
def _reason(x):
    return E()
"""
    found = {one.code[-1] for _, one in Reader(ast.parse(source), known, {"StateError"}).told()}
    assert found == set("acdefw"), "B is only an argument of A, and G only a note"


COMMAND = re.compile(r"\bflowcheck ((?:switch|lab|fleet) [a-z]+|[a-z]+)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OF_OTHERS = {"--use-distributed-optimizer", "--save", "--system", "--no-iommu", "--resources"}
"""Megatron-LM's, useradd's, scripts/bind-nic's, and Ray's."""
TABLE = re.compile(r"\[{1,2}([a-z_]+(?:\.[a-z_]+)*)\]{1,2}(?!\()(?: ([a-z_]+)\b(?=[^`]*`))?")
"""`[optimizer] name`, `[[optimizer.each]]`: the table, and a key in the same backticks."""
OF_LAYOUTS = {"monitor", "cable", "traffic", "session"}
"""Tables of a layout file (flowcheck ports), and of the file of `switch check --state`."""


def commands() -> dict[str, set[str]]:
    """{command of the command line ("switch render"): its options}"""
    found, waiting = dict[str, set[str]](), [("", get_command(app))]
    while waiting:
        name, command = waiting.pop()
        own = {opt for one in command.params for opt in (*one.opts, *one.secondary_opts)}
        found[name] = {"--help", *own}
        for below, one in getattr(command, "commands", {}).items():
            waiting.append((f"{name} {below}".strip(), one))
    return found


COMMANDS = commands()
OPTIONS = set[str]().union(*COMMANDS.values())
SPOKEN = re.compile(
    r"\bflowcheck ((?:switch|lab|fleet) [a-z]+|[a-z]+)((?:(?!\bflowcheck\b)[^`;,:()])*)"
)
"""A command, and what follows it on its command line or in the sentence."""
COMMANDS_OF_ROOM = {
    "ops/switch": ("switch",),
    "cli/switch": ("switch",),
    "lab/": ("lab",),
    "ops/restore": ("restore", "serve", "verify"),
    "ops/trainer_checkpoint": ("audit", "base"),
    "ops/mirror_ports": ("ports",),
    "ops/packet_loss": ("plan-loss",),
    "ops/fleet": ("fleet",),
    "fleet/": ("fleet",),
    "ops/planning": ("plan",),
    "ops/analysis": ("analyze",),
    "ops/lifecycle": ("up", "replay", "status", "down"),
    "ops/watch": ("watch", "top", "status"),
}
"""{part of the package: the commands whose errors it tells}: an option that a text names without
its command is one of theirs."""


def options_near(code: str) -> set[str]:
    """The options that a text may name without a command, by the places that tell it."""
    rooms = [
        next((room for room in COMMANDS_OF_ROOM if place.startswith(room)), "")
        for place in told_to_operators().get(code, ())
    ]
    if not rooms or "" in rooms:  # nobody knows which commands tell it
        return OPTIONS
    names = {name for room in rooms for name in COMMANDS_OF_ROOM[room]}
    of_them = (own for one, own in COMMANDS.items() if one.split(" ")[0] in names)
    return set[str]().union(*of_them)


def fields_of(path: str) -> set[str]:
    """Keys of a table of the job file, or of the fleet file."""
    kinds: list[object] = [JobConfig, FleetConfig]
    for part in path.split("."):
        kinds = [
            field.type for kind in kinds for field in _fields(kind) if field.encode_name == part
        ]
        kinds = [struct for kind in kinds for struct in _structs(kind)]
    return {field.encode_name for kind in kinds for field in _fields(kind)}


def _fields(kind: object) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)  # type: ignore[arg-type]


def _structs(kind: object) -> Iterator[object]:
    """The structs within an annotation."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for one in typing.get_args(kind):
        yield from _structs(one)


@pytest.mark.parametrize("part", ["sentence", "remedy"])
def test_each_option_is_one_of_the_command_that_is_named(part: str) -> None:
    wrong = {
        code: found
        for code, entry in entries().items()
        if (found := wrong_options(getattr(entry, part), options_near(code)))
    }
    assert wrong == {}


def wrong_options(text: str, near: set[str]) -> list[str]:
    """Options that their command does not have; near: those that may stand without a command."""
    wrong = [
        f"{command} {option}"
        for command, rest in SPOKEN.findall(text)
        for option in OPTION.findall(rest)
        if command in COMMANDS and option not in COMMANDS[command]
    ]
    free = set(OPTION.findall(SPOKEN.sub("", text)))
    return wrong + sorted(free - near - OF_OTHERS)


def test_an_option_of_another_command_is_found() -> None:
    assert wrong_options("run `flowcheck audit FILE --step N --run R`", set()) == []
    assert wrong_options("flowcheck audit FILE --then LATER", OPTIONS) == ["audit --then"]
    assert wrong_options("flowcheck base F --then G; flowcheck audit F --after 3", OPTIONS) == [
        "audit --after"
    ]
    assert wrong_options("no answer within its --timeout", COMMANDS["switch apply"]) == [
        "--timeout"
    ]


@pytest.mark.parametrize("entry", SHOWN, ids=lambda entry: entry.code)
def test_commands_and_keys_of_a_remedy_exist(entry: Entry) -> None:
    assert set(COMMAND.findall(entry.remedy)) <= COMMANDS.keys()
    for table, key in TABLE.findall(entry.remedy):
        if table not in OF_LAYOUTS:
            assert fields_of(table), f"no table [{table}]"
            assert not key or key in fields_of(table), f"[{table}] has no {key}"


def test_what_does_not_exist_is_found() -> None:
    assert COMMAND.findall("`flowcheck bless FILE`, `flowcheck switch render`") == [
        "bless",
        "switch render",
    ]
    assert TABLE.findall("`[optimizer] nam`; `[[optimizer.each]]`; [a page](x.md); `[run] a`.") == [
        ("optimizer", "nam"),
        ("optimizer.each", ""),
        ("run", "a"),
    ]
    assert "name" in fields_of("optimizer") and not fields_of("optimizers")
    assert {"", "bless"} - COMMANDS.keys() == {"bless"}
