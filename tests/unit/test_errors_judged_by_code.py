"""Tests judge an error of FlowCheck's by its finding, not by its English (support/refused_as.py): a
sentence may be reworded without a test that fails, and a code may not change without one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from test_findings_raised import PACKAGE, errors_of

TESTS = Path(__file__).resolve().parents[1]
SENTENCE_WANTED = {
    "bench/__main__.py": "a figure's note says why it is absent",
    "support/eal.py": "a process of its own says on stdout how it ended",
    "support/faults/plane.py": "a verdict's reason, for who reads it; the verdict is another field",
    "support/hostile.py": "that there is a sentence, short enough for a terminal",
    "unit/test_safe_torch_load.py": "that it is one line, which begins with the file",
    "unit/test_shared_file_errors.py": "that the error's text is the sentence of its finding",
}
"""Files that take the text of an error, and what for: none compares it with English."""
ANY = {"Exception", "BaseException"}
"""Kinds of error that FlowCheck's are of as well."""
CATCHES = {"raises", "refused_as"}


def named(node: ast.AST | None) -> set[str]:
    """The names of classes in `X`, `module.X`, `(X, Y)`."""
    if isinstance(node, ast.Tuple):
        return {name for one in node.elts for name in named(one)}
    if isinstance(node, ast.Name):
        return {node.id}
    return {node.attr} if isinstance(node, ast.Attribute) else set()


def called(node: ast.AST) -> str:
    """`raises` of `pytest.raises(...)`."""
    return next(iter(named(node.func)), "") if isinstance(node, ast.Call) else ""


def catches(node: ast.AST, errors: set[str]) -> bool:
    """Whether it waits for an error of FlowCheck's: `pytest.raises(StateError)`."""
    if not isinstance(node, ast.Call) or called(node) not in CATCHES:
        return False
    kinds = named(node.args[0]) if node.args else set()
    kinds |= {
        name for k in node.keywords if k.arg == "expected_exception" for name in named(k.value)
    }
    return called(node) == "refused_as" or bool(kinds & (errors | ANY))


def caught_names(function: ast.AST, errors: set[str]) -> Iterator[str]:
    """What stands for an error of FlowCheck's: `as caught`, `except StateError as error`."""
    for node in ast.walk(function):
        if isinstance(node, ast.withitem) and catches(node.context_expr, errors):
            yield from named(node.optional_vars)
        elif isinstance(node, ast.ExceptHandler) and node.name and named(node.type) & errors:
            yield node.name


def root(node: ast.AST) -> str:
    """`caught` of `caught.value.finding`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def texts_in(node: ast.AST) -> Iterator[ast.expr]:
    """Of what a text is made: by str(...), or in an f-string that is compared."""
    if isinstance(node, ast.Call) and called(node) in ("str", "repr"):
        yield from node.args[:1]
    elif isinstance(node, ast.Compare):
        for one in ast.walk(node):
            if isinstance(one, ast.FormattedValue):
                yield one.value


def judged_sentences(tree: ast.Module, errors: set[str]) -> Iterator[int]:
    """Lines on which a pattern of its sentence is given for an error, or its text is taken."""
    for node in ast.walk(tree):
        patterned = isinstance(node, ast.Call) and any(k.arg == "match" for k in node.keywords)
        if patterned and catches(node, errors):
            yield node.lineno
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        caught = set(caught_names(node, errors))
        if not caught:
            continue
        for one in ast.walk(node):
            for text in texts_in(one):
                if root(text) in caught and "arguments" not in ast.unparse(text):
                    yield text.lineno
            if isinstance(one, ast.Call) and called(one) == "match" and root(one.func) in caught:
                yield one.lineno


def test_no_test_judges_an_error_by_its_sentence() -> None:
    errors = set(errors_of([ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]))
    found: dict[str, list[int]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        if lines := sorted(set(judged_sentences(ast.parse(path.read_text()), errors))):
            found[str(path.relative_to(TESTS))] = lines
    assert {name: lines for name, lines in found.items() if name not in SENTENCE_WANTED} == {}
    assert set(SENTENCE_WANTED) <= set(found), "no file is excepted that need not be"


def test_a_judged_sentence_is_found() -> None:
    source = """
def one():
    with pytest.raises(StateError, match="is full"): ...
    with raises((ValueError, errors.ConfigError), match=told): ...
    with pytest.raises(Exception, match="is full"): ...
    with pytest.raises(OSError, match="No space"): ...
    with pytest.raises(StateError) as caught: ...
    assert "is full" in str(caught.value)
    assert f"{caught.value.finding}" == "is full"
    assert caught.match("is full")
    assert caught.value.finding.is_any_of(FULL)
    assert str(caught.value.finding.arguments["path"]) == "x"
def two():
    with refused_as(FULL) as found: ...
    return str(found.value)
def three():
    try: ...
    except StateError as error: return str(error)
    except ValueError as other: return str(other)
"""
    found = list(judged_sentences(ast.parse(source), {"StateError", "ConfigError"}))
    assert sorted(found) == [3, 4, 5, 8, 9, 10, 15, 18]
