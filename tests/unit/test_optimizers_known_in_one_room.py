"""No optimizer is known by its name outside of the room that has a row for each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torch

PACKAGE = Path(__file__).resolve().parents[2] / "flowcheck"
ROOM = "optimizer_rules"
CLASSES = {
    kind.__name__.lower()
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
} - {"optimizer"}
EXCEPTIONS = {
    "lab/jobs/gpt.py": "a training script, which makes its optimizer",
    "lab/job_run/run_plan.py": "states that script's optimizer in its job file",
    "cli/main.py": "examples of a name in help texts",
    "cli/plan_cli.py": "examples of a name in help texts",
    "findings/catalog/refused_optimizers.py": "an example of a name in what an error asks for",
    "replica/torch_without_compiler.py": "loads torch by a step of any of its classes",
    "findings/catalog/lost_steps.py": "a sentence; local SGD is a way to train, no optimizer",
    "findings/catalog/step_arithmetic.py": "names the two whose fused kernels round otherwise",
    "findings/catalog/refused_trainers.py": "a sentence; local SGD is a way to train, no optimizer",
}
"""Files that name one all the same, and why nothing there depends on which it is."""


def documentation(tree: ast.Module) -> set[int]:
    """Strings that stand alone: docstrings of whatever is above them."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def modules() -> Iterator[tuple[str, str]]:
    """(path, source) of the whole package but the room."""
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] != ROOM:
            yield str(path.relative_to(PACKAGE)), path.read_text()


def names(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every string and identifier of code with the name of a class of torch.optim
    in it as a word."""
    tree = ast.parse(source)
    left_out = documentation(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in left_out:
                pass
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.keyword(arg=str(text)):
                pass
            case ast.FunctionDef(name=text) | ast.ClassDef(name=text) | ast.arg(arg=text):
                pass
            case ast.alias(name=text):
                pass
            case _:
                continue
        if CLASSES & {word.lower() for word in re.split(r"[^A-Za-z0-9]+|_", text)}:
            yield getattr(node, "lineno", 0), text


def test_only_the_room_of_optimizers_and_stated_exceptions_name_one() -> None:
    found = {path: list(names(source)) for path, source in modules()}
    named = {path: lines for path, lines in found.items() if lines}
    assert {path: lines for path, lines in named.items() if path not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() - named.keys() == set(), "exceptions that are none any more"


def test_a_name_is_found_wherever_code_may_have_it() -> None:
    source = '''
"""AdamW in a docstring is no code."""
def f(sgd, other):
    """Nor here: SGD."""
    if other.name == "adamw" or other.name in ("x", "RMSprop"):
        return torch.optim.SGD, ADAM, f"as {other} adagrad"
    return g(muon=1)
'''
    lines = sorted(line for line, _ in names(source))
    assert lines == [3, 5, 5, 6, 6, 6, 7]


def test_nothing_compares_the_word_for_no_optimizer() -> None:
    """[optimizer] name = "none" is asked for as `computes_steps`."""
    wrong = [
        f"{path}:{node.lineno}"
        for path, source in modules()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        and any(isinstance(x, ast.Constant) and x.value == "none" for x in node.comparators)
        and isinstance(node.left, ast.Attribute)
        and node.left.attr == "name"
    ]
    assert wrong == []
