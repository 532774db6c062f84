"""An error of FlowCheck's is raised with a finding of the catalogue, not with English in place."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "flowcheck"
EXCEPTED = (
    "cli",
    "lab",
    "ops/mirror_ports",
    "ops/node",
    "ops/switch",
    "wire/learn",
)
"""Rooms, or single files, that still raise text."""
MESSAGE_AT = {"ConfigError": 2, "CoreError": 1, "RingError": 1, "CaptureError": 1}
"""Which argument holds the fact; of every other error it is the first."""
BASE = "FlowCheckError"
CHECKED = "errors.py"
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


def is_excepted(path: str) -> bool:
    return (
        path == CHECKED
        or any(path in (room, f"{room}.py") for room in EXCEPTED)
        or any(path.startswith(f"{room}/") for room in EXCEPTED)
    )


def test_errors_are_raised_with_findings() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    errors, functions = errors_of(list(trees.values())), text_functions(*trees.values())
    found = [
        f"{where}:{line}"
        for path, tree in trees.items()
        if not is_excepted(where := str(path.relative_to(PACKAGE)))
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
