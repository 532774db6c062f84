"""A public class or function name stands once in the package, unless the role is the same."""

import ast
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "flowcheck"
BY_MODULE = "called by its module's name, which says what it works on"
COMMAND = "a command of the CLI, and the function that does it"
FORMAT = "the interface of a module of a checkpoint format, and its use by format name"
PAIR = "two file formats, each called by its module's name"
COLLECTIVE = "the same collective: its frames as the lab makes them, and its schedule"
ALLOWED = {
    "main": "what a program starts with",
    "run": COMMAND,
    "apply": COMMAND,
    "check": f"{COMMAND}; elsewhere raises on the error code that C gave, or {BY_MODULE}",
    "down": f"{COMMAND}; in a tree of ranks: the direction, called by wire/learn",
    "record": COMMAND,
    "remove": COMMAND,
    "render": COMMAND,
    "restore": COMMAND,
    "serve": f"{COMMAND}; the capture starter serves requests of the supervisor",
    "status": COMMAND,
    "up": COMMAND,
    "read": FORMAT,
    "recognizes": FORMAT,
    "write": FORMAT,
    "save": BY_MODULE,
    "load": f"flowcheck.load and the function that does it; else {BY_MODULE}",
    "build": BY_MODULE,
    "undo": "takes back what its module changed on the machine",
    "encode": PAIR,
    "decode": PAIR,
    "as_dict": "the result of a command for --json",
    "show": "prints a result for people",
    "table": "a table for people",
    "all_gather": COLLECTIVE,
    "all_reduce": COLLECTIVE,
    "broadcast": COLLECTIVE,
    "is_asked": "the same question of an earlier version's run directory",
}
"""Names that stand more than once, and why."""


def public_names(package: Path) -> dict[str, list[str]]:
    """{name: files} of classes and functions at the top of a module. wire/learn keeps its names
    until it is replaced."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package)
        if "learn" in where.parts:
            continue
        for name in _tops(ast.parse(path.read_text()).body):
            found.setdefault(name, []).append(str(where))
    return found


def _tops(body: Iterable[ast.stmt]) -> set[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {n.name for n in body if isinstance(n, kinds) and not n.name.startswith("_")}


def repeated(package: Path) -> dict[str, list[str]]:
    return {name: files for name, files in public_names(package).items() if len(files) > 1}


def test_a_public_name_stands_once_unless_the_role_is_the_same() -> None:
    found = repeated(PACKAGE)
    assert {name: files for name, files in found.items() if name not in ALLOWED} == {}
    assert ALLOWED.keys() - found.keys() == set(), "these stand once now: they need no reason"


def test_a_class_name_is_never_excused() -> None:
    assert [name for name in ALLOWED if name[0].isupper()] == []


def test_a_name_in_two_files_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Same: ...\ndef other() -> None: ...\ndef _own(): ...\n")
    (tmp_path / "two.py").write_text("async def other() -> None: ...\nclass Same: ...\n_own = 1\n")
    (tmp_path / "three.py").write_text("class A:\n    def other(self) -> None: ...\n")
    assert repeated(tmp_path) == {"Same": ["one.py", "two.py"], "other": ["one.py", "two.py"]}
