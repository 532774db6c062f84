"""An error of FlowCheck's is raised with a finding of the catalogue, not with English in place; a
time in a finding is a number."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from flowcheck.findings.finding import Entry

PACKAGE = Path(__file__).resolve().parents[2] / "flowcheck"
CATALOG = "flowcheck.findings.catalog"
CATALOG_FILES = sorted((PACKAGE / "findings" / "catalog").glob("[!_]*.py"))
MESSAGE_AT = {"ConfigError": 2, "CoreError": 1, "RingError": 1, "CaptureError": 1}
"""Which argument holds the fact; of every other error it is the first."""
BASE = "FlowCheckError"
EXCEPTED = "errors.py"
"""The family itself; `check()` there passes on the sentence of the C library."""

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


def errors_of(trees: list[ast.Module]) -> dict[str, int]:
    """{class of FlowCheck's errors: which argument holds its fact}"""
    bases = {
        node.name: {one.id for one in node.bases if isinstance(one, ast.Name)}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {BASE}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return {name: MESSAGE_AT.get(name, 0) for name in found}


def own_nodes(scope: Scope) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions in it; of a module likewise."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def text_functions(*trees: ast.Module) -> set[str]:
    """Functions that return text, as NAME()."""
    return {
        f"{node.name}()"
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.returns is not None
        if "str" in ast.unparse(node.returns).split(" | ")
    }


def texts(scope: Scope, known: set[str]) -> set[str]:
    """Names that hold text made in this scope."""
    found = set(known)
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and node.value and is_text(node.value, known):
                    found.add(target.id)
    return found


def is_text(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression makes text, or may be a name that holds text."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, str)
        case ast.JoinedStr():
            return True
        case ast.Name(id=name):
            return name in names
        case ast.BinOp(left=left, right=right):
            return is_text(left, names) or is_text(right, names)
        case ast.IfExp(body=one, orelse=other):
            return is_text(one, names) or is_text(other, names)
        case ast.BoolOp(values=values):
            return any(is_text(one, names) for one in values)
        case ast.Call(func=ast.Attribute(value=text, attr="format" | "join")):
            return is_text(text, names)
        case ast.Call(func=ast.Name(id=name)):
            return name == "str" or f"{name}()" in names
    return False


def raised_texts(tree: ast.Module, errors: dict[str, int], functions: set[str]) -> Iterator[int]:
    """Lines on which an error of FlowCheck's is made with text. functions: of all modules."""
    public = {name for name in functions if not name.startswith("_")}
    in_module = texts(tree, public | text_functions(tree))
    scopes: list[Scope] = [tree]
    scopes += [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for scope in scopes:
        names = in_module if scope is tree else texts(scope, in_module)
        for node in own_nodes(scope):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if name not in errors:
                    continue
                facts = [*node.args[errors[name] :], *(k.value for k in node.keywords)]
                if any(is_text(fact, names) for fact in facts):
                    yield node.lineno


def test_errors_are_raised_with_findings() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    errors, functions = errors_of(list(trees.values())), text_functions(*trees.values())
    found = [
        f"{where}:{line}"
        for path, tree in trees.items()
        if (where := str(path.relative_to(PACKAGE))) != EXCEPTED
        for line in raised_texts(tree, errors, functions)
    ]
    assert found == []


def test_text_in_an_error_is_found() -> None:
    source = """
FULL = "is full"
class Broken(StateError): ...
class StateError(FlowCheckError): ...
def one(path, error):
    raise StateError("is full")
    raise StateError(f"{path}: is full")
    raise Broken(FULL)
    raise ConfigError("run", str(path), right="is full")
    raise ConfigError("run", str(path), "is full" if path else FOUND())
    raise RingError(5, f"{path}: is full")
    raise StateError(str(error))
    raise StateError(FOUND(path=f"{path}/x"))
    raise ConfigError(f"run.{path}", "is full", FOUND())
    raise ValueError("is full")
    raise RingError(5, FOUND(path))
def two(path):
    right = "must be " + path
    raise ConfigError("run", path, right)
def three(path):
    right = FOUND(path)
    raise ConfigError("run", path, right)
def said(path) -> str: ...
def four(path):
    raise StateError(said(path))
"""
    tree = ast.parse(source)
    errors = {**errors_of([tree]), "ConfigError": 2, "RingError": 1}
    found = sorted(raised_texts(tree, errors, text_functions()))
    assert found == [6, 7, 8, 9, 10, 11, 12, 19, 25]


TIME_NAMES = re.compile(r"(.*_)?(s|ms|ns|seconds)", re.ASCII)
"""Arguments whose name says that they are times, in which unit."""


def times_as_text(tree: ast.Module, times: dict[str, int]) -> Iterator[int]:
    """Lines on which a finding is made with a time as text. times: {name of the entry: which of
    its arguments is a time}."""
    names = texts(tree, set())
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name not in times:
            continue
        facts = [k.value for k in node.keywords if k.arg and TIME_NAMES.fullmatch(k.arg)]
        facts += node.args[times[name] : times[name] + 1]
        if any(is_text(fact, names) for fact in facts):
            yield node.lineno


def test_times_in_findings_are_numbers() -> None:
    """Each entry of the catalogue that has a time, by the name it is made with."""
    rooms = [importlib.import_module(f"{CATALOG}.{path.stem}") for path in CATALOG_FILES]
    times = {
        name: next(n for n, one in enumerate(entry.names) if TIME_NAMES.fullmatch(one))
        for room in rooms
        for name, entry in vars(room).items()
        if isinstance(entry, Entry) and any(map(TIME_NAMES.fullmatch, entry.names))
    }
    assert {"PROGRAM_KILLED", "STEPS_WAITING", "SEARCH_ENDED"} <= set(times)
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in times_as_text(ast.parse(path.read_text()), times)
    ]
    assert found == []


def test_a_time_as_text_is_found() -> None:
    source = """
LATE(f"{LIMIT_S:g}")
LATE(LIMIT_S)
LATE(what, limit_s=f"{LIMIT_S:g}", said="x")
LATE(what, limit_s=LIMIT_S, said=f"{x}")
OTHER(f"{LIMIT_S:g}")
catalog.LATE(str(LIMIT_S))
"""
    assert list(times_as_text(ast.parse(source), {"LATE": 0})) == [2, 4, 7]
