"""Whoever makes a finding gives it the arguments of its sentence: found here, not at three in the
morning."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import flowcheck.findings.catalog
from flowcheck.findings.finding import Entry

PACKAGE = Path(__file__).resolve().parents[2] / "flowcheck"
ROOM = "flowcheck.findings.catalog"
CORE_TABLE = PACKAGE.parent / "dpdk_ext/core/fc_error_table.h"
"""What the C core fails with; tests/unit/test_core_reasons.py holds it to the catalogue."""


def catalogue() -> dict[str, dict[str, Entry]]:
    """{module: {name: entry}}"""
    found = {}
    for module in pkgutil.iter_modules(flowcheck.findings.catalog.__path__, f"{ROOM}."):
        names = vars(importlib.import_module(module.name))
        found[module.name] = {k: v for k, v in names.items() if isinstance(v, Entry)}
    return found


def calls(tree: ast.AST, known: dict[str, dict[str, Entry]]) -> Iterator[tuple[ast.Call, Entry]]:
    """Every call of an entry that is imported by name, or by its module."""
    names, modules = dict[str, Entry](), dict[str, dict[str, Entry]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for name in node.names:
                own = name.asname or name.name
                if (entry := known.get(node.module or "", {}).get(name.name)) is not None:
                    names[own] = entry
                if node.module == ROOM and f"{ROOM}.{name.name}" in known:
                    modules[own] = known[f"{ROOM}.{name.name}"]
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in names:
                yield node, names[name]
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
                if name in modules.get(module, {}):
                    yield node, modules[module][name]


def wrong(tree: ast.AST, known: dict[str, dict[str, Entry]]) -> Iterator[tuple[int, str]]:
    for call, entry in calls(tree, known):
        given = [keyword.arg for keyword in call.keywords]
        if None in given:  # **: what it holds is not to be read here
            continue
        if len(entry.names) > 1 and call.args:
            yield call.lineno, f"{entry.code}: several arguments are given by name"
        elif len(call.args) + len(given) != len(entry.names) or not set(given) <= set(entry.names):
            yield call.lineno, f"{entry.code}: takes {entry.names}"


def test_every_finding_is_made_with_the_arguments_of_its_sentence() -> None:
    known, found = catalogue(), []
    for path in PACKAGE.rglob("*.py"):
        for line, what in wrong(ast.parse(path.read_text()), known):
            found.append(f"{path.relative_to(PACKAGE)}:{line}: {what}")
    assert found == []


def test_a_wrong_call_is_found() -> None:
    known = {f"{ROOM}.one": {"LOST": Entry("test.called", "{step} lost {n}")}}
    source = f"from {ROOM}.one import LOST\nfrom {ROOM} import one\n"
    calls = ("LOST(1, 2)", "one.LOST(step=1)", "LOST(step=1, n=2)", "LOST(step=1, why=2)")
    found = [line for line, _ in wrong(ast.parse(source + "\n".join(calls)), known)]
    assert found == [3, 4, 6]


def test_every_entry_of_the_catalogue_is_used() -> None:
    used = set(re.findall(r"\bX\((\w+),", CORE_TABLE.read_text()))
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        used |= {
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    unused = [f"{m}.{n}" for m, names in catalogue().items() for n in names if n not in used]
    assert unused == []
